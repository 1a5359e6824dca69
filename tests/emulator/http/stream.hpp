// Bytes to and from one client, over TCP or TLS.
//
// Owned by its connection. At most one read and one write at a time. Failures are
// boost::system::system_error.
#pragma once

#include "event.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>

#include <memory>

namespace emulator::http {

class stream {
public:
    virtual ~stream() = default;
    virtual task<void> open() = 0; // the TLS handshake
    virtual task<std::size_t> read_some(boost::asio::mutable_buffer into) = 0;
    virtual task<void> write(boost::asio::const_buffer all) = 0;
    // Orderly: what was written is delivered, then the end.
    virtual task<void> finish() = 0;
    // At once: with a reset, or with a bare FIN (over TLS that is a truncation). Pending operations
    // fail.
    virtual void abort(bool reset) = 0;
};

std::unique_ptr<stream> make_tcp(boost::asio::ip::tcp::socket socket);
std::unique_ptr<stream> make_tls(boost::asio::ip::tcp::socket socket,
                                 boost::asio::ssl::context& context);

} // namespace emulator::http
