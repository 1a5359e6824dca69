// Accepts connections of our own user on the listening socket and hands each to a connection.
//
// Owns the acceptor; connections own themselves and are only remembered here, to be closed when the
// daemon stops.
#pragma once

#include "rpc/services.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <chrono>
#include <memory>
#include <vector>

namespace sandboxd::rpc {

class connection;

class server {
public:
    // `listening`: a listening Unix stream socket, owned from now on.
    server(boost::asio::any_io_executor executor, int listening, services& parts);
    ~server();

    boost::asio::awaitable<void> run(); // accepts until stop()
    // Accepts on this socket, owned from now on, and no more on the one before; connections stay.
    void move_to(int listening);
    // Accepts no more and closes every connection once what is pending for it is written, or after
    // `patience`.
    void stop(std::chrono::milliseconds patience);
    bool drained(); // no connection is left

private:
    boost::asio::local::stream_protocol::acceptor acceptor_;
    services& parts_;
    std::vector<std::weak_ptr<connection>> connections_;
};

} // namespace sandboxd::rpc
