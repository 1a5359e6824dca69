// Who gets the next place among the account's active sandboxes, and which idle one makes room.
//
// The account may have so many active sandboxes at once; whoever needs one more enters this queue
// and is served in the order of coming. Places are also taken by others on the account, whom nobody
// tells us about: the platform then refuses, the refused one keeps its place in the queue, and one
// at a time tries again with growing pauses, or at once when a sandbox of ours has stopped.
//
// Pure: the caller says what time it is (any clock that only goes forward), what our sandboxes do,
// and how the platform answered; decide() says what to do next. Owned by the manager.
#pragma once

#include "cloud/failure.hpp"
#include "core/background.hpp"
#include "core/backoff.hpp"
#include "core/sandbox_record.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace sandboxd::core {

// A sandbox of ours that takes a place.
struct slot_user {
    sandbox_key key;
    bool leaving = false;   // on its way to give the place back
    bool evictable = false; // running, nothing in flight, and it can be resumed later
    milliseconds idle_for{0};
    background work = background::not_asked;
    bool asking = false; // the answer is under way
};

struct slot_limits {
    int max_active = 5;
    milliseconds evict_min_idle{60'000};
    milliseconds timeout{300'000};  // of waiting; zero: whoever cannot be served at once is refused
    milliseconds poll_first{1'000}; // after the platform refused
    milliseconds poll_longest{15'000};
};

class slot_queue {
public:
    using ticket = std::uint64_t; // never 0, grows with the order of coming

    explicit slot_queue(slot_limits limits)
        : limits_(limits), poll_(limits.poll_first, limits.poll_longest) {}

    ticket enter(sandbox_key key, milliseconds now);
    // Whoever has what it wanted, or does not want it any more. Unknown tickets are fine.
    void leave(ticket which) { waiters_.erase(which); }
    // The platform refused the place that was granted. `jitter`: 0 to 1, at random, so that several
    // daemons of one account do not ask in step.
    void on_refused(ticket which, milliseconds now, const cloud::failure& why, double jitter);
    // The platform has given it: its sandbox is among the users from now on.
    void on_taken(ticket which);
    // A sandbox of ours has stopped: the platform may have room at once.
    void on_freed(milliseconds now);

    struct decision {
        std::vector<ticket> granted;
        std::vector<ticket> timed_out; // they have left
        std::vector<sandbox_key> evict;
        std::vector<sandbox_key> ask; // what runs in the background there, before it can be evicted
        std::optional<milliseconds> look_again_in; // nothing: only when something changes
    };
    decision decide(milliseconds now, std::vector<slot_user> users);

    std::size_t waiting() const noexcept;           // without a place
    std::size_t place(ticket which) const noexcept; // 1: next; 0: it has one, or is not here
    // How the platform refused; nothing: it has not, since it last gave a place.
    const std::optional<cloud::failure>& refused() const noexcept { return refused_; }
    const slot_limits& limits() const noexcept { return limits_; }

private:
    struct waiter {
        sandbox_key key;
        milliseconds since{0};
        bool granted = false;
    };

    bool holds_place(const waiter& each, const std::vector<slot_user>& users) const;
    bool is_waiting(const sandbox_key& key) const;
    void make_room(decision& result, const std::vector<slot_user>& users, std::size_t wanted) const;

    slot_limits limits_;
    std::map<ticket, waiter> waiters_; // in the order of coming
    ticket last_ = 0;
    std::optional<cloud::failure> refused_;
    std::optional<milliseconds> retry_at_; // the platform refused: not before, and one at a time
    backoff poll_;
};

} // namespace sandboxd::core
