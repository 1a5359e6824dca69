// One-session sandboxes: each belongs to the process it was made for, is never resumed and never
// shared, and ends with that process.
//
// A closed connection is not a process that has gone: an upgrade of the daemon closes all. So the
// owner is remembered across restarts, and looked for by pid and start time.
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

using namespace asio::experimental::awaitable_operators;
using std::chrono::milliseconds;

void manager::adopt_owner(core::sandbox_record& record, const wanted& want) const {
    record.owner = {};
    record.owner_gone = false;
    if (!want.persistent && want.client) {
        record.owner = {want.client->pid, want.client->start_time, boot_};
    }
}

// One whose process cannot be seen (pid 0) counts as alive: it ends by being released or idle.
bool manager::owner_lives(const core::sandbox_record& record) const {
    if (record.owner_gone) {
        return false;
    }
    return record.owner.pid == 0 ||
           (record.owner.boot == boot_ &&
            sys::alive({static_cast<pid_t>(record.owner.pid), record.owner.start_time}));
}

std::string manager::guests_command(const entry& each, const sys::process_identity& asker) const {
    const core::owner_process& owner = each.record.owner;
    const sys::process_identity owning{static_cast<pid_t>(owner.pid), owner.start_time};
    const auto found =
        std::find_if(each.leases.begin(), each.leases.end(), [&](const holding& command) {
            const sys::process_identity& client = command.client;
            return client.pid != 0 && client != owning && client != asker && sys::alive(client);
        });
    return found == each.leases.end() ? std::string() : found->exec_id;
}

// Whether the key's sandbox may be used by whoever asks; false: it is being deleted, wait for that.
bool manager::clear_the_way(const std::shared_ptr<entry>& each, const wanted& want) {
    const core::sandbox_record& record = each->record;
    const bool exists = !record.sandbox_id.empty() || record.create_pending || each->current;
    if (record.persistent || !exists) {
        return true;
    }
    if (owner_lives(record)) {
        const bool another = want.client && record.owner.pid != 0 &&
                             (want.client->pid != record.owner.pid ||
                              want.client->start_time != record.owner.start_time);
        if (another && !want.persistent) {
            rpc_error error(
                error_name::sandbox_busy,
                "the one-session sandbox of " + describe(record.key) + " belongs to " +
                    sys::describe({static_cast<pid_t>(record.owner.pid), record.owner.start_time}) +
                    "; it is not shared");
            error.sandbox_id = record.sandbox_id;
            throw error;
        }
        return true;
    }
    if (each->current) {
        return false;
    }
    if (record.create_pending) {
        return true; // the bring-up looks for it, and what it finds is new
    }
    // Its session is over. Until orphan-grace has passed a guest may work in it on, as before; only
    // who wants one of its own need not wait, and even then a guest's command is not ended.
    if (want.persistent && record.state != core::life_state::stopped) {
        return true;
    }
    const std::string command =
        guests_command(*each, want.client.value_or(sys::process_identity{}));
    if (!command.empty()) {
        rpc_error error(error_name::sandbox_busy, "the session that the sandbox of " +
                                                      describe(record.key) +
                                                      " was made for is over, but another client's "
                                                      "command (" +
                                                      command + ") still runs in it");
        error.sandbox_id = record.sandbox_id;
        throw error;
    }
    spdlog::info("{}: its session is over, deleting it", describe(record.key));
    begin(each, operation_kind::terminate, {});
    return false;
}

asio::awaitable<void> manager::mind_owners() {
    while (!reconciled_) {
        co_await pulse_->activity.wait();
    }
    const milliseconds period =
        std::clamp<milliseconds>(options_.orphan_grace / 4, milliseconds(20), tick());
    for (;;) {
        bool any = false;
        std::vector<std::shared_ptr<entry>> over;
        for (const auto& [key, each] : entries_) {
            if (each->record.persistent || !is_of_account(*each) || each->record.create_pending) {
                continue;
            }
            any = true;
            if (owner_lives(each->record) || !guests_command(*each, {}).empty()) {
                each->nobody_since.reset();
                continue;
            }
            if (!each->nobody_since) {
                each->nobody_since = awake();
            }
            if (awake() - *each->nobody_since >= options_.orphan_grace && !each->current) {
                over.push_back(each);
            }
        }
        for (const std::shared_ptr<entry>& each : over) {
            each->record.owner_gone = true;
            each->record.state_lost = false; // nobody is left to be told
            each->nobody_since = awake();    // if it fails, again after the same time
            if (each->record.state != core::life_state::absent) {
                spdlog::info("{}: its client's process is gone, deleting it",
                             describe(each->record.key));
                begin(each, operation_kind::terminate, {});
            } else if (each->record.doubts.empty()) {
                entries_.erase(each->record.key);
            }
        }
        if (any) {
            asio::steady_timer timer(executor_, period);
            co_await (timer.async_wait(asio::use_awaitable) || pulse_->activity.wait());
        } else {
            co_await pulse_->activity.wait();
        }
    }
}

} // namespace sandboxd::sandbox
