#include "rpc/server.hpp"

#include "rpc/connection.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

namespace sandboxd::rpc {
namespace asio = boost::asio;

server::server(asio::any_io_executor executor, int listening, services& parts)
    : acceptor_(executor, asio::local::stream_protocol(), listening), parts_(parts) {}

server::~server() = default;

asio::awaitable<void> server::run() {
    while (acceptor_.is_open()) {
        auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
        if (error == asio::error::operation_aborted) {
            continue; // stopped, or moved
        }
        if (error) {
            // Out of descriptors, most likely: clients wait in the backlog, and accepting at once
            // would only spin.
            spdlog::warn("a connection could not be accepted: {}", error.message());
            asio::steady_timer pause(acceptor_.get_executor(), std::chrono::milliseconds(100));
            co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
            continue;
        }
        try {
            const sys::peer_credentials peer = sys::peer_of(socket.native_handle());
            if (!sys::is_own_user(peer)) {
                spdlog::warn("a connection of another user (uid {}) was refused", peer.uid);
                continue;
            }
            std::erase_if(connections_, [](const auto& each) { return each.expired(); });
            const auto accepted =
                std::make_shared<connection>(std::move(socket), peer.process, parts_);
            connections_.push_back(accepted);
            accepted->start();
        } catch (const std::exception& problem) {
            spdlog::warn("a connection was refused: {}", problem.what());
        }
    }
}

void server::move_to(int listening) {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    acceptor_.assign(asio::local::stream_protocol(), listening);
}

void server::stop(std::chrono::milliseconds patience) {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    for (const auto& each : connections_) {
        if (const std::shared_ptr<connection> open = each.lock()) {
            open->close_soon(patience);
        }
    }
}

bool server::drained() {
    std::erase_if(connections_, [](const auto& each) {
        const std::shared_ptr<connection> open = each.lock();
        return !open || open->closed();
    });
    return connections_.empty();
}

} // namespace sandboxd::rpc
