// One sandbox of the platform: what the API tells of it, and what it really is.
//
// Shared by the platform (which lists it) and the calls in flight. `epoch` changes with every
// change of state, so that a coroutine that slept can tell whether what it waited for is still
// wanted.
#pragma once

#include "cell/cell.hpp"

#include <boost/asio/steady_timer.hpp>
#include <boost/json/object.hpp>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

namespace emulator::cloud {

enum class state { creating, starting, running, stopping, stopped, failed, deleted };
std::string_view name_of(state which);

struct sandbox {
    explicit sandbox(const boost::asio::any_io_executor& executor) : deadline(executor) {}

    std::string id;
    int account = 0;
    std::string plan, image;
    boost::json::object tags;
    double timeout_s = 0; // as asked for; 0 = the default
    double created_at = 0;
    state now = state::creating;
    std::uint64_t epoch = 0;
    std::chrono::steady_clock::time_point since;     // of this state
    std::chrono::steady_clock::time_point last_call; // end of the last exec or fs call
    std::uint64_t boots = 0;
    std::size_t calls_in_flight = 0;
    std::filesystem::path directory; // holds workspace/ and staging/
    std::filesystem::path workspace() const { return directory / "workspace"; }
    std::shared_ptr<cell::cell> inside; // while running
    boost::asio::steady_timer deadline;

    // Counts against the cap, and costs.
    bool active() const {
        return now == state::creating || now == state::starting || now == state::running ||
               now == state::stopping;
    }
};
using sandbox_ptr = std::shared_ptr<sandbox>;

} // namespace emulator::cloud
