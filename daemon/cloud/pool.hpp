// Connections at rest between requests, the newest first, and those about to come back.
//
// Owned by the client and by execs' streams. Holds no connection past its idle time: one timer,
// armed for the oldest, none if the pool is empty.
#pragma once

#include "cloud/connection.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <vector>

namespace sandboxd::cloud {

class pool : public std::enable_shared_from_this<pool> {
public:
    using clock = connection::clock;

    // `idle`: how long a connection may rest at the most.
    pool(boost::asio::any_io_executor executor, std::chrono::milliseconds idle);

    const boost::asio::any_io_executor& executor() const noexcept { return executor_; }

    // The newest one that is still good, or null.
    std::shared_ptr<connection> take();
    // `server_idle`: what the server's `Keep-Alive: timeout=` said. We let go a second earlier, so
    // that a request does not meet the server's closing.
    void give_back(std::shared_ptr<connection> from,
                   std::optional<std::chrono::seconds> server_idle);
    // Closes what rests; the others were made in the same network and are likely dead too when one
    // is.
    void clear() noexcept;
    // The client is gone: closes everything, also what comes back later.
    void shut() noexcept;
    std::size_t size() const noexcept { return idle_.size(); }

    // An answer whose end nobody waits for is being read, after which the connection comes back:
    // exists that long.
    class returning {
    public:
        returning(std::shared_ptr<pool> to, std::shared_ptr<connection> what);
        ~returning();
        returning(const returning&) = delete;
        returning& operator=(const returning&) = delete;

    private:
        std::shared_ptr<pool> to_;
        std::list<std::shared_ptr<connection>>::iterator place_;
    };

    // Waits until a connection came back, but no longer than making a new one lately took: so
    // waiting is never much worse than not waiting. Returns at once if none is on its way that
    // nobody else waits for.
    boost::asio::awaitable<void> wait_for_return();
    void connecting_took(clock::duration time) noexcept { connect_time_ = time; }

private:
    struct resting {
        std::shared_ptr<connection> what;
        clock::time_point until;
    };

    void watch();
    void wake_waiters();

    boost::asio::any_io_executor executor_;
    std::chrono::milliseconds longest_idle_;
    std::vector<resting> idle_; // in the order they came
    boost::asio::steady_timer timer_;
    bool watching_ = false;
    bool shut_ = false;
    std::list<std::shared_ptr<connection>> returning_;
    std::list<boost::asio::steady_timer*> waiters_;
    clock::duration connect_time_{0};
};

} // namespace sandboxd::cloud
