// The parts of an archive between the daemon's thread, which fetches them, and the one that reads
// them.
//
// Shared by the two; owns the descriptors that wait in it. Errors are std::system_error.
#pragma once

#include "sys/fd.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace sandboxd::sync {

// At most two parts wait, if whoever pushes asks first.
class part_feed {
public:
    void push(sys::unique_fd part); // any thread; does not wait
    void finish();                  // no more will come
    void abandon();                 // ... and what came is not wanted: the reader fails
    bool wants_more() const;        // fewer than two wait, or the reader has ended
    bool ended() const;             // the reader has: before finish() only because it failed
    // Called on the reading thread whenever wants_more() may have changed.
    std::function<void()> on_taken;

    // For the reading thread: waits; nothing at the end. Throws std::system_error (ECANCELED).
    sys::unique_fd take();
    void check_wanted() const; // throws ECANCELED as take() does, and does not wait
    void end_reading();

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<sys::unique_fd> waiting_;
    bool finished_ = false;
    bool abandoned_ = false;
    bool ended_ = false;
};

} // namespace sandboxd::sync
