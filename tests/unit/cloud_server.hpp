// A server that does what a test's script says, byte by byte, and the means to run a client against
// it: all on one io_context, so that nothing needs a sleep. Plain TCP or TLS, on 127.0.0.1.
//
// GCC 12 miscompiles a co_await in the condition of an `if` (the coroutine resumes at the wrong
// place); so the result is named first, here and in the scripts.
#pragma once

#include "cloud/client.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sandboxd::cloud::test {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using http_message = http::request<http::string_body>;

constexpr auto as_result = asio::as_tuple(asio::use_awaitable);

// The server's end of one connection. Nothing throws: a peer that is gone shows as nothing read.
class peer {
public:
    peer(asio::ip::tcp::socket socket, asio::ssl::context* tls) : socket_(std::move(socket)) {
        buffer_.reserve(64 << 10); // Beast reads no more than there is room for
        if (tls != nullptr) secured_.emplace(socket_, *tls);
    }

    asio::awaitable<bool> handshake() {
        if (!secured_) co_return true;
        const auto [ec] =
            co_await secured_->async_handshake(asio::ssl::stream_base::server, as_result);
        co_return !ec;
    }
    // The next request, whole; nothing at the end.
    asio::awaitable<std::optional<http_message>> request() {
        http::request_parser<http::string_body> parser;
        parser.body_limit(boost::none);
        boost::system::error_code ec;
        if (secured_) {
            std::tie(ec, std::ignore) =
                co_await http::async_read(*secured_, buffer_, parser, as_result);
        } else {
            std::tie(ec, std::ignore) =
                co_await http::async_read(socket_, buffer_, parser, as_result);
        }
        if (ec) co_return std::nullopt;
        co_return parser.release();
    }
    // What one read of the socket gives; empty at the end.
    asio::awaitable<std::string> read_once() {
        std::string out(256 << 10, '\0');
        boost::system::error_code ec;
        std::size_t bytes = 0;
        if (secured_) {
            std::tie(ec, bytes) = co_await secured_->async_read_some(asio::buffer(out), as_result);
        } else {
            std::tie(ec, bytes) = co_await socket_.async_read_some(asio::buffer(out), as_result);
        }
        out.resize(bytes);
        co_return out;
    }
    asio::awaitable<bool> write(std::string text) {
        boost::system::error_code ec;
        if (secured_) {
            std::tie(ec, std::ignore) =
                co_await asio::async_write(*secured_, asio::buffer(text), as_result);
        } else {
            std::tie(ec, std::ignore) =
                co_await asio::async_write(socket_, asio::buffer(text), as_result);
        }
        co_return !ec;
    }
    // FIN. Over TLS without a close_notify: the connection is cut.
    void close() {
        boost::system::error_code ignored;
        socket_.close(ignored);
    }
    void reset() {
        boost::system::error_code ignored;
        socket_.set_option(asio::socket_base::linger(true, 0), ignored);
        socket_.close(ignored);
    }
    SSL* tls() { return secured_->native_handle(); }
    asio::any_io_executor executor() { return socket_.get_executor(); }

private:
    asio::ip::tcp::socket socket_;
    std::optional<asio::ssl::stream<asio::ip::tcp::socket&>> secured_;
    boost::beast::flat_buffer buffer_;
};

class scripted_server {
public:
    // What happens on each connection after the handshake; the connection is closed at its end.
    using script = std::function<asio::awaitable<void>(peer&)>;

    scripted_server(asio::io_context& io, script what, asio::ssl::context* tls = nullptr)
        : io_(io), script_(std::move(what)), tls_(tls),
          acceptor_(io, {asio::ip::make_address("127.0.0.1"), 0}) {
        asio::co_spawn(io_, accept(), asio::detached);
    }

    std::string url(const std::string& host = "127.0.0.1") const {
        return (tls_ != nullptr ? "https://" : "http://") + host + ":" +
               std::to_string(acceptor_.local_endpoint().port());
    }

    int connections = 0;
    int handshakes = 0;
    int ended = 0; // connections whose script has ended

private:
    asio::awaitable<void> accept() {
        while (true) {
            auto [ec, socket] = co_await acceptor_.async_accept(as_result);
            if (ec) co_return;
            ++connections;
            asio::co_spawn(io_, serve(std::make_shared<peer>(std::move(socket), tls_)),
                           asio::detached);
        }
    }
    asio::awaitable<void> serve(std::shared_ptr<peer> one) {
        const bool ready = co_await one->handshake();
        if (ready) {
            ++handshakes;
            co_await script_(*one);
        }
        one->close();
        ++ended;
    }

    asio::io_context& io_;
    script script_;
    asio::ssl::context* tls_;
    asio::ip::tcp::acceptor acceptor_;
};

// Runs what is pending until `done` says so; ten seconds without an event mean that it never will.
inline void run_until(asio::io_context& io, const std::function<bool()>& done) {
    while (!done()) {
        io.restart();
        REQUIRE(io.run_one_for(std::chrono::seconds(10)) == 1);
    }
}

// Runs `what` to its end; its exception comes out.
template <class T>
T await(asio::io_context& io, asio::awaitable<T> what) {
    std::optional<T> out;
    std::exception_ptr error;
    bool done = false;
    asio::co_spawn(io, std::move(what), [&](std::exception_ptr e, T value) {
        error = e;
        out.emplace(std::move(value));
        done = true;
    });
    run_until(io, [&done] { return done; });
    if (error) std::rethrow_exception(error);
    return std::move(*out);
}

inline std::string http_answer(int status, const std::string& body,
                               const std::string& fields = {}) {
    return "HTTP/1.1 " + std::to_string(status) +
           " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body;
}

inline std::string chunk(const std::string& text) {
    char size[20];
    std::snprintf(size, sizeof size, "%zx", text.size());
    return std::string(size) + "\r\n" + text + "\r\n";
}

inline const std::string stream_header =
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
inline const std::string last_chunk = "0\r\n\r\n";
inline const std::string sandbox_json = R"({"sandbox_id":"sb_1","state":"running"})";

// A script that answers every request by `answer`, which sees them all.
inline scripted_server::script answering(std::function<std::string(const http_message&)> answer) {
    return [answer = std::move(answer)](peer& one) -> asio::awaitable<void> {
        while (const auto request = co_await one.request()) {
            const bool alive = co_await one.write(answer(*request));
            if (!alive) break;
        }
    };
}

inline client_options options_for(const std::string& url) {
    client_options out;
    out.base_url = url;
    out.user_agent = "test/1";
    return out;
}

// A client and the server that it talks to; over TLS if there is a `context`.
struct client_bench {
    explicit client_bench(scripted_server::script script,
                          const std::function<void(client_options&)>& change = {},
                          asio::ssl::context* context = nullptr,
                          const std::string& host = "127.0.0.1")
        : server(io, std::move(script), context) {
        client_options options = options_for(server.url(host));
        if (change) change(options);
        api.emplace(io.get_executor(), options);
        api->set_key(secret("k-canary"));
    }
    template <class T>
    T wait(asio::awaitable<T> what) {
        return await(io, std::move(what));
    }

    asio::io_context io;
    scripted_server server;
    std::optional<client> api;
};

} // namespace sandboxd::cloud::test
