// What the manager keeps about one key while the daemon lives. Only sandbox/ looks inside.
#pragma once

#include "core/awake_clock.hpp"
#include "core/retention.hpp"
#include "core/slot_queue.hpp"
#include "sandbox/background_probe.hpp"
#include "sandbox/manager.hpp"

#include <utility>

namespace sandboxd::sandbox {

enum class operation_kind : int { bring_up, stop, terminate };

// One bring-up or shut-down of an entry, shared by all who wait for it.
struct operation {
    operation_kind kind = operation_kind::bring_up;
    wanted want;                         // of a bring-up
    std::chrono::milliseconds since{0};  // monotonic
    std::string doing;                   // for people
    std::string account;                 // fingerprint of the key it works with
    int askers = 0;                      // who wait for what it brings
    int enders = 0;                      // who wait for its end, to shut the sandbox down
    std::string sandbox_id;              // of a shut-down: what it was about; empty: nothing
    core::slot_queue::ticket ticket = 0; // while it waits for a place or uses one; 0: neither
    enum class place { none, waiting, granted, timed_out } slot = place::none;
    bool idle = false; // of a shut-down: nobody asked for it, it was idle
    // It ended because nobody asked any more, or the account is another one now: whoever does ask
    // looks again.
    bool abandoned = false;
    bool done = false;
    std::optional<rpc_error> error;
    ensured outcome;
};

// A command that holds a sandbox, and the process that asked for it; pid 0: not known.
struct holding {
    std::string exec_id;
    sys::process_identity client;
};

class entry {
public:
    entry(boost::asio::any_io_executor executor, core::sandbox_key key)
        : changed(std::move(executor)) {
        record.key = std::move(key);
    }

    void used(std::chrono::milliseconds awake) {
        last_used = awake;
        work = {core::background::not_asked, {}};
    }

    core::sandbox_record record;
    std::shared_ptr<operation> current;                      // the one under way, if any
    std::vector<holding> leases;                             // oldest first
    std::uint64_t forced = 0;                                // shut-downs in spite of leases
    std::chrono::milliseconds last_used{0};                  // awake clock
    background_answer work{core::background::not_asked, {}}; // as told since the last use
    std::chrono::milliseconds work_told{0};                  // awake clock
    bool asking = false;                                     // the sandbox is being asked
    bool looked_up = false;                                  // the platform is, what became of it
    bool unseen = false; // the daemon was away or asleep, and has not heard of it since
    std::set<sys::process_identity> holders;
    std::chrono::milliseconds held_since{0};               // monotonic; since when there are leases
    std::chrono::milliseconds call_ended{0};               // monotonic; the last that is known of
    std::optional<std::chrono::milliseconds> nobody_since; // awake clock; of a one-session sandbox
    // Since when listings have not shown the sandbox of an open intent; awake clock.
    std::optional<std::chrono::milliseconds> absent_since;
    core::retention age;    // of a stopped one
    bool untouched = false; // its sandbox was made by this daemon, and no command has held it yet
    condition changed;      // the operation moved on or ended, a lease went
};

// What leases need of the manager. Shared, because a lease may outlive it when the io_context is
// torn down.
struct pulse {
    pulse(boost::asio::any_io_executor executor, std::chrono::milliseconds tick)
        : activity(std::move(executor)), clock(tick) {}

    condition activity; // something that the reaper's or the queue's next look depends on
    core::awake_clock clock;
};

} // namespace sandboxd::sandbox
