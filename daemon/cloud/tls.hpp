// How our TLS connections are made: whom we trust, what we insist on, and the session that makes
// the next handshake short.
//
// One for the client's one host; connections share it and it lives as long as the longest of them.
// Roots are OpenSSL's defaults, so SSL_CERT_FILE and SSL_CERT_DIR work; they are read here, once.
// Throws boost::system::system_error if the library cannot be set up.
#pragma once

#include "cloud/endpoint.hpp"

#include <boost/asio/ssl/context.hpp>

#include <memory>
#include <string>

namespace sandboxd::cloud {

class tls_context {
public:
    explicit tls_context(const endpoint& at);
    ~tls_context();
    tls_context(const tls_context&) = delete;
    tls_context& operator=(const tls_context&) = delete;

    boost::asio::ssl::context& native() noexcept { return context_; }

    // Before the handshake of a connection: the name to ask for and to insist on, and the session
    // to resume.
    void prepare(SSL* connection);
    // After a handshake that failed: a session may have been the reason.
    void forget_session() noexcept { session_.reset(); }

    // Why a handshake failed, for people: the certificate's fault by name if it was that, else the
    // fallback.
    static std::string failure_text(SSL* connection, std::string_view fallback);

private:
    static int on_new_session(SSL* connection, SSL_SESSION* session);

    struct free_session {
        void operator()(SSL_SESSION* session) const noexcept { SSL_SESSION_free(session); }
    };

    std::string host_;
    bool host_is_address_;
    boost::asio::ssl::context context_;
    // The newest one the host gave us; only handshakes whose certificate was found good yield one.
    std::unique_ptr<SSL_SESSION, free_session> session_;
};

} // namespace sandboxd::cloud
