// "Something has changed, look again", between coroutines of the one thread.
//
// As with a condition variable, a waiter checks its predicate, waits, and checks again; nothing is
// remembered for those who come later. Waiting can be cancelled like any Asio operation
// (system_error, operation_aborted).
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>

#include <chrono>
#include <cstdint>
#include <utility>

namespace sandboxd {

class condition {
public:
    explicit condition(boost::asio::any_io_executor executor)
        : timer_(std::move(executor), boost::asio::steady_timer::time_point::max()) {}

    boost::asio::awaitable<void> wait() {
        const std::uint64_t seen = changes_;
        const auto [error] =
            co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
        // The timer is cancelled by notify_all() and by the waiter's own cancellation alike.
        if (changes_ == seen) {
            throw boost::system::system_error(error);
        }
    }

    void notify_all() {
        ++changes_;
        timer_.cancel();
    }

private:
    boost::asio::steady_timer timer_;
    std::uint64_t changes_ = 0;
};

} // namespace sandboxd
