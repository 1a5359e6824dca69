// See stream.hpp.
#include "http/stream.hpp"

#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>

#include <sys/socket.h>

namespace asio = boost::asio;
using asio::ip::tcp;

namespace emulator::http {

namespace {

void shut(tcp::socket& socket, bool reset) {
    boost::system::error_code ec;
    if (reset)
        socket.set_option(asio::socket_base::linger(true, 0), ec);
    else
        socket.shutdown(tcp::socket::shutdown_both, ec);
    socket.close(ec);
}

class tcp_stream : public stream {
public:
    explicit tcp_stream(tcp::socket socket) : socket_(std::move(socket)) {}

    task<void> open() override { co_return; }
    task<std::size_t> read_some(asio::mutable_buffer into) override {
        return socket_.async_read_some(into, asio::use_awaitable);
    }
    task<void> write(asio::const_buffer all) override {
        co_await asio::async_write(socket_, all, asio::use_awaitable);
    }
    task<void> finish() override {
        boost::system::error_code ec;
        socket_.shutdown(tcp::socket::shutdown_send, ec);
        co_return;
    }
    void abort(bool reset) override { shut(socket_, reset); }

private:
    tcp::socket socket_;
};

class tls_stream : public stream {
public:
    tls_stream(tcp::socket socket, asio::ssl::context& context)
        : stream_(std::move(socket), context) {}

    task<void> open() override {
        co_await stream_.async_handshake(stream_.server, asio::use_awaitable);
    }
    task<std::size_t> read_some(asio::mutable_buffer into) override {
        return stream_.async_read_some(into, asio::use_awaitable);
    }
    task<void> write(asio::const_buffer all) override {
        co_await asio::async_write(stream_, all, asio::use_awaitable);
    }
    // Waits for the client's close_notify, beside the read that is always pending.
    task<void> finish() override { co_await stream_.async_shutdown(asio::use_awaitable); }
    void abort(bool reset) override { shut(stream_.next_layer(), reset); }

private:
    asio::ssl::stream<tcp::socket> stream_;
};

} // namespace

std::unique_ptr<stream> make_tcp(tcp::socket socket) {
    return std::make_unique<tcp_stream>(std::move(socket));
}

std::unique_ptr<stream> make_tls(tcp::socket socket, asio::ssl::context& context) {
    return std::make_unique<tls_stream>(std::move(socket), context);
}

} // namespace emulator::http
