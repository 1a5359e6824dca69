// One TCP or TLS connection to the API, with a time-out on every step.
//
// Held by whoever uses it (a call, an exec's stream, the pool); when the last holder lets go it is
// closed, which is how a half-read answer never reaches the pool. A step that runs out of time
// closes the connection and fails as `timed_out`; a step whose coroutine is cancelled throws
// system_error(operation_aborted), after which reading may go on (nothing is lost) but a
// half-written request makes the connection useless.
#pragma once

#include "cloud/endpoint.hpp"
#include "cloud/failure.hpp"
#include "cloud/tls.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace sandboxd::cloud {

class connection : public std::enable_shared_from_this<connection> {
    struct passkey {};

public:
    using clock = std::chrono::steady_clock;
    using error_code = boost::system::error_code;
    using tcp = boost::asio::ip::tcp;
    struct transferred {
        error_code ec;
        std::size_t bytes = 0;
    };

    // `tls` null: plain TCP.
    static std::shared_ptr<connection> make(boost::asio::any_io_executor executor,
                                            std::shared_ptr<tls_context> tls);
    connection(passkey, boost::asio::any_io_executor executor, std::shared_ptr<tls_context> tls);
    ~connection();

    // Connects to the first of `addresses` (not empty) that answers, and shakes hands. Each of the
    // two has `timeout`; several addresses share it. Fails as unreachable.
    boost::asio::awaitable<result<void>> open(std::vector<tcp::endpoint> addresses,
                                              std::chrono::milliseconds timeout);

    // How long each following step may take at the most (zero: no limit), and when all of them must
    // be over.
    void limit_step(std::chrono::milliseconds longest) noexcept { step_ = longest; }
    void limit_all(clock::time_point until) noexcept { until_ = until; }
    void unlimited() noexcept {
        step_ = std::chrono::milliseconds(0);
        until_ = never;
    }

    // Writes everything, with the step's limit on each piece that the kernel takes.
    boost::asio::awaitable<error_code> write(std::span<const boost::asio::const_buffer> pieces);
    boost::asio::awaitable<transferred> read_some(boost::asio::mutable_buffer into);

    // Whether a request may be sent on it: open, and nothing to be read, neither data that nobody
    // asked for nor the end.
    bool quiet() noexcept;
    void close() noexcept;
    // Stops the clock, so that a connection that waits in the pool wakes nobody.
    void rest();

    bool was_pooled() const noexcept { return was_pooled_; }
    void mark_pooled() noexcept { was_pooled_ = true; }
    const tcp::endpoint& peer() const noexcept { return peer_; }

private:
    static constexpr clock::time_point never = clock::time_point::max();

    boost::asio::awaitable<error_code> connect(const tcp::endpoint& address);
    void begin_step();
    void end_step() noexcept { deadline_ = never; }
    void watch();
    // The error of a step as it is told: time-outs by that name; throws if the coroutine was
    // cancelled.
    error_code told(error_code ec) const;

    std::shared_ptr<tls_context> tls_;
    tcp::socket socket_;
    std::optional<boost::asio::ssl::stream<tcp::socket&>> secured_;
    boost::asio::steady_timer timer_;
    tcp::endpoint peer_;
    std::chrono::milliseconds step_{0};
    clock::time_point until_ = never;
    clock::time_point deadline_ = never; // of the step under way
    bool watching_ =
        false; // the timer runs; it may be set for earlier than needed, then it is set anew
    bool timed_out_ = false;
    bool was_pooled_ = false;
};

// The addresses of `at`, in the order to try; for plain http only loopback ones. Asks the system's
// resolver on a thread of Asio's and stops waiting for it after `timeout` or when cancelled. Fails
// as unreachable.
boost::asio::awaitable<result<std::vector<boost::asio::ip::tcp::endpoint>>>
look_up(boost::asio::any_io_executor executor, const endpoint& at,
        std::chrono::milliseconds timeout);

} // namespace sandboxd::cloud
