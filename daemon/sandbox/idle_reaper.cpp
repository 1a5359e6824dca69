// Stops what has been idle for too long, after asking whether something works there in the
// background; decides nothing itself (core/reaper).
#include "core/reaper.hpp"

#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

using namespace asio::experimental::awaitable_operators;
using std::chrono::milliseconds;

asio::awaitable<void> manager::reap() {
    while (!reconciled_) {
        co_await pulse_->activity.wait(); // what is not known for sure is not stopped
    }
    const core::reap_limits limits{
        .idle_stop = options_.idle_stop,
        .background_max = options_.background_max,
        .ask_again =
            std::clamp<milliseconds>(options_.idle_stop, milliseconds(200), milliseconds(60'000))};
    for (;;) {
        std::vector<core::reap_candidate> candidates;
        const milliseconds at = awake();
        for (const auto& [key, each] : entries_) {
            if (is_of_account(*each)) {
                candidates.push_back({key, each->record.state, is_in_use(*each) || each->asking,
                                      at - each->last_used, each->work.what, at - each->work_told,
                                      idle_stop(each->record)});
            }
        }
        const core::reap_plan plan = core::plan_reaping(candidates, limits);
        for (const core::sandbox_key& key : plan.ask) {
            ask_inside(key);
        }
        for (const core::sandbox_key& key : plan.stop) {
            const milliseconds idle = at - entry_for(key)->last_used;
            const core::life_state state = entry_for(key)->record.state;
            stop_idle(key, (state == core::life_state::running
                                ? "idle"
                                : std::string(core::to_string(state)) + " with nobody waiting") +
                               std::string(" for ") + std::to_string(idle.count() / 1000) + " s");
        }
        if (plan.look_again_in) {
            // Looked at often, so that what a stopped process slept through is not counted.
            asio::steady_timer timer(executor_, std::min(*plan.look_again_in, tick()));
            co_await (timer.async_wait(asio::use_awaitable) || pulse_->activity.wait());
        } else {
            co_await pulse_->activity.wait();
        }
    }
}

void manager::stop_idle(const core::sandbox_key& key, const std::string& why) {
    const std::shared_ptr<entry> each = entry_for(key);
    // One that is never resumed is of no use stopped, nor one that has never run.
    const bool resumable = each->record.persistent && !each->record.untried;
    spdlog::info("{}: {}, {} it", describe(key), why, resumable ? "stopping" : "deleting");
    begin(each, resumable ? operation_kind::stop : operation_kind::terminate, {})->idle = true;
}

void manager::ask_inside(const core::sandbox_key& key) {
    const std::shared_ptr<entry> each = entry_for(key);
    if (std::exchange(each->asking, true)) {
        return;
    }
    asio::co_spawn(
        executor_,
        [this, each]() -> asio::awaitable<void> {
            const milliseconds used = each->last_used;
            background_answer answer;
            answer.text = "nobody can tell";
            try {
                if (probe_ != nullptr) {
                    answer = co_await probe_->ask(each->record.sandbox_id);
                }
            } catch (const std::exception& problem) {
                answer = {core::background::failed, problem.what()};
            }
            each->asking = false;
            if (each->last_used == used) { // else it has been used meanwhile, and that is newer
                each->work = std::move(answer);
                each->work_told = awake();
            }
            pulse_->activity.notify_all();
        },
        asio::detached);
}

milliseconds manager::idle_stop(const core::sandbox_record& record) const {
    // After longer than its time-out the platform has stopped it.
    return record.idle_stop.count() != 0
               ? milliseconds(std::min(record.idle_stop, server_timeout(record)))
               : options_.idle_stop;
}

// What it was made with, not what the option says by now.
std::chrono::seconds manager::server_timeout(const core::sandbox_record& record) const {
    return record.timeout.count() != 0 ? record.timeout
                                       : std::min(options_.server_timeout, core::least_timeout);
}

std::chrono::seconds manager::server_timeout(const core::sandbox_key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? options_.server_timeout
                                   : server_timeout(found->second->record);
}

// With the intent. An earlier attempt of the same creation, which may turn up in the place of this
// one, may have been sent with another time-out: the shorter one is kept.
void manager::note_timeout(core::sandbox_record& record) const {
    if (!record.create_pending || !record.sandbox_id.empty()) {
        return;
    }
    const bool another = record.attempt > 1 && record.timeout.count() != 0;
    record.timeout =
        another ? std::min(record.timeout, options_.server_timeout) : options_.server_timeout;
}

// The platform counts idleness from the last call that finished (D), so one finishes at least every
// third of the time-out. A command that began after a long rest gets a second to do so itself.
asio::awaitable<void> manager::keep_awake() {
    for (;;) {
        std::optional<milliseconds> next;
        for (const auto& [key, each] : entries_) {
            if (each->leases.empty() || probe_ == nullptr) {
                continue;
            }
            const milliseconds period = milliseconds(server_timeout(each->record)) / 3;
            milliseconds due = std::max(each->call_ended + period,
                                        each->held_since + std::min(period, milliseconds(1'000)));
            if (due <= now()) {
                asio::co_spawn(executor_, probe_->keep_awake(each->record.sandbox_id),
                               asio::detached);
                each->call_ended = now();
                due = now() + period;
            }
            next = next ? std::min(*next, due) : due;
        }
        if (next) {
            asio::steady_timer timer(executor_, std::max(*next - now(), milliseconds(1)));
            co_await (timer.async_wait(asio::use_awaitable) || pulse_->activity.wait());
        } else {
            co_await pulse_->activity.wait();
        }
    }
}

} // namespace sandboxd::sandbox
