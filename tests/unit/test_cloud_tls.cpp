// Whom a TLS connection trusts: certificates made here with OpenSSL, the roots given by
// SSL_CERT_FILE as to the daemon.
#include "cloud_server.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <filesystem>
#include <unistd.h>

using namespace sandboxd;
using namespace sandboxd::cloud;
using namespace sandboxd::cloud::test;

namespace {

using key_ptr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using certificate_ptr = std::unique_ptr<X509, decltype(&X509_free)>;

struct identity {
    key_ptr key{EVP_EC_gen("P-256"), &EVP_PKEY_free};
    certificate_ptr certificate{nullptr, &X509_free};
};

void extend(X509* certificate, X509* issuer, int what, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
    REQUIRE(extension != nullptr);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
}

// A certificate for `names` ("DNS:localhost", ...), or a root if it has none; signed by `issuer`,
// or by itself.
identity make(const std::string& common_name, const std::string& names, const identity* issuer,
              long valid_for = 3600) {
    static long serial = 1;
    identity out;
    out.certificate.reset(X509_new());
    X509* const c = out.certificate.get();
    X509_set_version(c, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(c), serial++);
    X509_gmtime_adj(X509_getm_notBefore(c), -7200);
    X509_gmtime_adj(X509_getm_notAfter(c), valid_for);
    X509_set_pubkey(c, out.key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                               0);
    X509* const by = issuer != nullptr ? issuer->certificate.get() : c;
    X509_set_issuer_name(c, X509_get_subject_name(by));
    if (names.empty()) {
        extend(c, by, NID_basic_constraints, "critical,CA:TRUE");
    } else {
        extend(c, by, NID_subject_alt_name, names);
    }
    REQUIRE(X509_sign(c, issuer != nullptr ? issuer->key.get() : out.key.get(), EVP_sha256()) > 0);
    return out;
}

// The file that SSL_CERT_FILE names while this lives.
class trusted_roots {
public:
    explicit trusted_roots(const identity& root) {
        std::string name =
            (std::filesystem::temp_directory_path() / "sandboxd-roots-XXXXXX").string();
        const int fd = ::mkstemp(name.data());
        REQUIRE(fd >= 0);
        path_ = name;
        FILE* file = ::fdopen(fd, "w");
        PEM_write_X509(file, root.certificate.get());
        std::fclose(file);
        if (const char* before = std::getenv("SSL_CERT_FILE")) before_ = before;
        ::setenv("SSL_CERT_FILE", path_.c_str(), 1);
    }
    ~trusted_roots() {
        if (before_) {
            ::setenv("SSL_CERT_FILE", before_->c_str(), 1);
        } else {
            ::unsetenv("SSL_CERT_FILE");
        }
        std::filesystem::remove(path_);
    }

private:
    std::filesystem::path path_;
    std::optional<std::string> before_;
};

struct server_context {
    explicit server_context(const identity& who) {
        SSL_CTX_use_certificate(context.native_handle(), who.certificate.get());
        SSL_CTX_use_PrivateKey(context.native_handle(), who.key.get());
    }
    asio::ssl::context context{asio::ssl::context::tls_server};
};

struct bench : client_bench {
    bench(scripted_server::script script, asio::ssl::context& context, const std::string& host)
        : client_bench(
              std::move(script),
              [](client_options& options) { options.connect_timeout = std::chrono::seconds(5); },
              &context, host) {}
};

} // namespace

TEST_CASE("cloud tls: a trusted certificate for the right name is accepted, any other refused "
          "before a byte is sent") {
    const identity root = make("root", "", nullptr);
    const identity stranger = make("root", "", nullptr);
    const trusted_roots roots(root);
    struct attempt {
        std::string names;
        std::string host;
        const identity* issuer;
        long valid_for;
        std::string complaint; // empty: accepted
    };
    for (const attempt& each : std::initializer_list<attempt>{
             {"DNS:localhost", "localhost", &root, 3600, ""},
             {"DNS:other.example,DNS:LOCALHOST", "localhost", &root, 3600, ""},
             {"IP:127.0.0.1", "127.0.0.1", &root, 3600, ""},
             {"DNS:other.example", "localhost", &root, 3600, "hostname mismatch"},
             {"DNS:*", "localhost", &root, 3600, "hostname mismatch"},
             {"IP:127.0.0.1", "localhost", &root, 3600, "hostname mismatch"},
             {"DNS:localhost", "127.0.0.1", &root, 3600, "IP address mismatch"},
             {"DNS:127.0.0.1", "127.0.0.1", &root, 3600, "IP address mismatch"},
             {"IP:127.0.0.2", "127.0.0.1", &root, 3600, "IP address mismatch"},
             {"DNS:localhost", "localhost", &stranger, 3600, "certificate"},
             {"DNS:localhost", "localhost", nullptr, 3600, "self-signed"},
             {"DNS:localhost", "localhost", &root, -3600, "expired"}}) {
        CAPTURE(each.names);
        CAPTURE(each.host);
        CAPTURE(each.complaint);
        // The common name says "localhost" always: with alternative names it must count for
        // nothing.
        const identity who = make("localhost", each.names, each.issuer, each.valid_for);
        server_context context(who);
        int requests = 0;
        bench b(answering([&requests](const http_message&) {
                    ++requests;
                    return http_answer(200, sandbox_json);
                }),
                context.context, each.host);
        const auto said = b.wait(b.api->get("sb_1"));
        CHECK(said.has_value() == each.complaint.empty());
        if (!said.has_value()) {
            CHECK(said.error().kind == failure_kind::unreachable);
            CHECK(!said.error().effect_unknown());
            INFO(said.error().message);
            CHECK(said.error().message.find(each.complaint) != std::string::npos);
            CHECK(said.error().message.find("certificate") != std::string::npos);
            run_until(b.io, [&b] { return b.server.ended == b.server.connections; });
        }
        CHECK(requests == (each.complaint.empty() ? 1 : 0));
        CHECK(b.api->requests() == (each.complaint.empty() ? 1U : 0U));
    }
}

TEST_CASE("cloud tls: the name is sent, versions before 1.2 are refused, and a plain server is no "
          "TLS server") {
    const identity root = make("root", "", nullptr);
    const trusted_roots roots(root);
    const identity who = make("x", "DNS:localhost", &root);
    server_context context(who);
    std::string name;
    bench b(
        [&name](peer& one) -> asio::awaitable<void> {
            if (const char* asked = SSL_get_servername(one.tls(), TLSEXT_NAMETYPE_host_name))
                name = asked;
            co_await one.request();
            co_await one.write(http_answer(200, sandbox_json));
        },
        context.context, "localhost");
    CHECK(b.wait(b.api->get("sb_1")).has_value());
    CHECK(name == "localhost");

    server_context old(who);
    SSL_CTX_set_cipher_list(old.context.native_handle(), "DEFAULT:@SECLEVEL=0");
    SSL_CTX_set_min_proto_version(old.context.native_handle(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(old.context.native_handle(), TLS1_1_VERSION);
    bench refused(answering([](const http_message&) { return http_answer(200, sandbox_json); }),
                  old.context, "localhost");
    CHECK(refused.wait(refused.api->get("sb_1")).error().kind == failure_kind::unreachable);

    asio::io_context io;
    scripted_server plain(io, [](peer& one) -> asio::awaitable<void> {
        co_await one.read_once();
        co_await one.write("HTTP/1.1 400 This is not TLS\r\n\r\n");
    });
    auto options = options_for(plain.url());
    options.base_url.replace(0, 4, "https");
    client api(io.get_executor(), options);
    api.set_key(secret("k"));
    const auto said = await(io, api.get("sb_1"));
    CHECK(said.error().kind == failure_kind::unreachable);
    CHECK(said.error().message.find("TLS handshake") != std::string::npos);
}

TEST_CASE("cloud tls: a handshake that stands still times out") {
    asio::io_context io;
    scripted_server mute(io, [](peer& one) -> asio::awaitable<void> {
        while (true) {
            const std::string heard = co_await one.read_once();
            if (heard.empty()) break;
        }
    });
    auto options = options_for(mute.url());
    options.base_url.replace(0, 4, "https");
    options.connect_timeout = std::chrono::milliseconds(50);
    client api(io.get_executor(), options);
    api.set_key(secret("k"));
    CHECK(await(io, api.stop("sb_1")).error().kind == failure_kind::unreachable);
    CHECK(api.requests() == 0);
}

TEST_CASE("cloud tls: one connection for many calls, and the next handshake resumes the session") {
    const identity root = make("root", "", nullptr);
    const trusted_roots roots(root);
    const identity who = make("x", "DNS:localhost", &root);
    for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        server_context context(who);
        SSL_CTX_set_max_proto_version(context.context.native_handle(), version);
        std::vector<bool> resumed;
        bench b(
            [&resumed](peer& one) -> asio::awaitable<void> {
                resumed.push_back(SSL_session_reused(one.tls()) == 1);
                while (const auto request = co_await one.request()) {
                    const bool last = request->method() == http::verb::delete_;
                    co_await one.write(
                        http_answer(200, sandbox_json, last ? "Connection: close\r\n" : ""));
                    if (last) break;
                }
            },
            context.context, "localhost");
        for (int i = 0; i < 3; ++i) {
            CHECK(b.wait(b.api->get("sb_1")).has_value());
            CHECK(b.wait(b.api->stop("sb_1")).has_value());
            CHECK(b.wait(b.api->remove("sb_1")).has_value());
        }
        CHECK(b.server.connections == 3);
        CHECK(resumed == std::vector<bool>{false, true, true});
    }
}

TEST_CASE(
    "cloud tls: a connection cut without a farewell is no end of a body, and not used again") {
    const identity root = make("root", "", nullptr);
    const trusted_roots roots(root);
    const identity who = make("x", "DNS:localhost", &root);
    server_context context(who);
    bench b(
        [](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            co_await one.write("HTTP/1.1 200 OK\r\n\r\n" +
                               sandbox_json); // up to the end, which an attacker could choose
        },
        context.context, "localhost");
    CHECK(b.wait(b.api->get("sb_1")).error().kind == failure_kind::interrupted);

    bench pooled(
        [](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            co_await one.write(http_answer(200, sandbox_json));
        },
        context.context, "localhost");
    CHECK(pooled.wait(pooled.api->get("sb_1")).has_value());
    run_until(pooled.io, [&pooled] { return pooled.server.ended == 1; });
    CHECK(pooled.wait(pooled.api->stop("sb_1")).has_value());
    CHECK(pooled.server.connections == 2);
}

TEST_CASE("cloud tls: execs stream, large uploads pass, and a cancelled next() loses nothing") {
    const identity root = make("root", "", nullptr);
    const trusted_roots roots(root);
    const identity who = make("x", "IP:127.0.0.1", &root);
    server_context context(who);
    const std::string line = chunk("{\"stdout\":\"" + std::string(50'000, 'x') + "\"}\n");
    std::size_t uploaded = 0;
    bool go_on = false;
    bench b(
        [&](peer& one) -> asio::awaitable<void> {
            while (const auto request = co_await one.request()) {
                if (request->method() == http::verb::put) {
                    uploaded = request->body().size();
                    co_await one.write(http_answer(200, "{}"));
                    continue;
                }
                co_await one.write(stream_header + chunk("{\"stdout\":\"he"));
                asio::steady_timer turn(one.executor());
                while (!go_on) {
                    turn.expires_after(std::chrono::milliseconds(1));
                    co_await turn.async_wait(as_result);
                }
                co_await one.write(chunk("re\"}\n"));
                for (int i = 0; i < 40; ++i)
                    co_await one.write(line);
                co_await one.write(chunk("{\"returncode\":0}\n") + last_chunk);
            }
        },
        context.context, "127.0.0.1");
    CHECK(b.wait(b.api->put_content("sb_1", "/workspace/x", std::string(3'000'000, 'x')))
              .has_value());
    CHECK(uploaded == 3'000'000);
    auto stream = b.wait(b.api->exec("sb_1", {"true"}, std::chrono::seconds(1)));
    REQUIRE(stream.has_value());
    for (int i = 0; i < 3; ++i) {
        asio::cancellation_signal stop;
        bool threw = false;
        bool done = false;
        asio::co_spawn(
            b.io, (*stream)->next(),
            asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr e, exec_event) {
                threw = e != nullptr;
                done = true;
            }));
        b.io.restart();
        b.io.poll();
        stop.emit(asio::cancellation_type::terminal);
        run_until(b.io, [&done] { return done; });
        CHECK(threw);
    }
    go_on = true;
    std::size_t sum = 0;
    std::string begin;
    while (true) {
        const auto event = b.wait((*stream)->next());
        if (std::holds_alternative<exec_exited>(event)) break;
        const auto* output = std::get_if<exec_output>(&event);
        REQUIRE(output != nullptr);
        if (begin.empty()) begin = output->text.substr(0, 5);
        sum += output->text.size();
    }
    CHECK(begin.substr(0, 4) == "here");
    CHECK(sum == 4 + 40 * 50'000);
    run_until(b.io, [&b] { return b.api->idle_connections() == 1; });
    CHECK(b.server.connections == 1);
}

TEST_CASE("cloud tls: cancelled at every step, nothing is left behind") {
    const identity root = make("root", "", nullptr);
    const trusted_roots roots(root);
    const identity who = make("x", "IP:127.0.0.1", &root);
    server_context context(who);
    bool finished = false;
    int cancelled_runs = 0;
    for (int turns = 0; !finished; ++turns) {
        CAPTURE(turns);
        REQUIRE(turns < 1000);
        bench b(answering([](const http_message&) { return http_answer(200, sandbox_json); }),
                context.context, "127.0.0.1");
        asio::cancellation_signal stop;
        bool done = false;
        bool threw = false;
        bool good = false;
        asio::co_spawn(b.io, b.api->get("sb_1"),
                       asio::bind_cancellation_slot(
                           stop.slot(), [&](std::exception_ptr e, result<sandbox_info> said) {
                               done = true;
                               threw = e != nullptr;
                               good = said.has_value() && said->id == "sb_1";
                           }));
        for (int i = 0; i < turns && !done; ++i) {
            b.io.restart();
            REQUIRE(b.io.run_one_for(std::chrono::seconds(10)) == 1);
        }
        finished = done;
        if (!done) {
            ++cancelled_runs;
            stop.emit(asio::cancellation_type::terminal);
            b.io.restart();
            while (!done && b.io.poll_one() == 1) {
            }
            REQUIRE(done);
        }
        CHECK(threw != good);
        const auto next = b.wait(b.api->get("sb_1"));
        CHECK(next.has_value());
    }
    CHECK(cancelled_runs > 5);
}
