#include "cloud/tls.hpp"

#include <boost/asio/ssl/error.hpp>
#include <boost/system/system_error.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <array>

namespace sandboxd::cloud {

namespace {

// Where a context finds its owner; index 0 (the "app data") is Asio's own.
int owner_index() {
    static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
    return index;
}

void require(int good) {
    if (good == 1) return;
    throw boost::system::system_error(
        boost::system::error_code(static_cast<int>(::ERR_get_error()),
                                  boost::asio::error::get_ssl_category()),
        "setting up TLS");
}

} // namespace

tls_context::tls_context(const endpoint& at)
    : host_(at.host), host_is_address_(is_ip_address(at.host)),
      context_(boost::asio::ssl::context::tls_client) {
    SSL_CTX* const raw = context_.native_handle();
    require(SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION));
    context_.set_default_verify_paths();
    context_.set_verify_mode(boost::asio::ssl::verify_peer);
    // An idle connection keeps no record buffers.
    SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    require(SSL_CTX_set_ex_data(raw, owner_index(), this));
    SSL_CTX_sess_set_new_cb(raw, &tls_context::on_new_session);
    static constexpr std::array<unsigned char, 9> protocols{8,   'h', 't', 't', 'p',
                                                            '/', '1', '.', '1'};
    SSL_CTX_set_alpn_protos(raw, protocols.data(),
                            protocols.size()); // 0 is success; a refusal is harmless
}

tls_context::~tls_context() {
    SSL_CTX_set_ex_data(context_.native_handle(), owner_index(), nullptr);
}

void tls_context::prepare(SSL* connection) {
    if (host_is_address_) {
        require(X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection), host_.c_str()));
    } else {
        // Names count in the alternative names only, as everywhere today.
        SSL_set_hostflags(connection, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS |
                                          X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
        require(SSL_set1_host(connection, host_.c_str()));
        require(static_cast<int>(SSL_set_tlsext_host_name(connection, host_.c_str())));
    }
    if (session_ && SSL_SESSION_is_resumable(session_.get()) == 1)
        SSL_set_session(connection, session_.get());
}

std::string tls_context::failure_text(SSL* connection, std::string_view fallback) {
    const long verdict = SSL_get_verify_result(connection);
    if (verdict == X509_V_OK) return "the TLS handshake failed: " + std::string(fallback);
    return std::string("the server's certificate is not accepted: ") +
           X509_verify_cert_error_string(verdict);
}

int tls_context::on_new_session(SSL* connection, SSL_SESSION* session) {
    auto* const self =
        static_cast<tls_context*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), owner_index()));
    if (self == nullptr) return 0;
    self->session_.reset(session);
    return 1; // the reference is ours now
}

} // namespace sandboxd::cloud
