#include "sync/part_feed.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

namespace sandboxd::sync {
namespace {

[[noreturn]] void throw_given_up() {
    throw std::system_error(ECANCELED, std::generic_category(), "given up");
}

} // namespace

void part_feed::push(sys::unique_fd part) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(part));
    changed_.notify_all();
}

void part_feed::finish() {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
}

void part_feed::abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    changed_.notify_all();
}

bool part_feed::wants_more() const {
    const std::lock_guard lock(mutex_);
    return waiting_.size() < 2 || ended_;
}

bool part_feed::ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
}

sys::unique_fd part_feed::take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !waiting_.empty() || finished_ || abandoned_; });
    if (abandoned_) throw_given_up();
    if (waiting_.empty()) return sys::unique_fd();
    sys::unique_fd next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    if (on_taken) on_taken();
    return next;
}

void part_feed::check_wanted() const {
    const std::lock_guard lock(mutex_);
    if (abandoned_) throw_given_up();
}

void part_feed::end_reading() {
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
        waiting_.clear();
    }
    if (on_taken) on_taken();
}

} // namespace sandboxd::sync
