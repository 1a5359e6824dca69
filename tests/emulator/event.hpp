// A wake-up call between coroutines of the one thread.
//
// wait() sleeps until somebody calls notify(); there is no memory, so a waiter checks its condition
// first and again after waking (it may wake for nothing). Owned by the object whose change it
// tells; it must outlive its waiters.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>

namespace emulator {

template <class T>
using task = boost::asio::awaitable<T>;

class event {
public:
    explicit event(const boost::asio::any_io_executor& executor)
        : timer_(executor, boost::asio::steady_timer::time_point::max()) {}

    task<void> wait() {
        boost::system::error_code woken;
        co_await timer_.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, woken));
    }
    void notify() { timer_.cancel(); }

private:
    boost::asio::steady_timer timer_;
};

inline task<void> sleep_ms(boost::asio::any_io_executor executor, std::int64_t milliseconds) {
    if (milliseconds <= 0) co_return;
    boost::asio::steady_timer timer(executor, std::chrono::milliseconds(milliseconds));
    boost::system::error_code ec;
    co_await timer.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, ec));
}

} // namespace emulator
