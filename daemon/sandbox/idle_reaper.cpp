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
                                      at - each->last_used, each->work.what, at - each->work_told});
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
    const bool resumable =
        each->record.persistent && each->record.state != core::life_state::creating;
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

// The platform counts idleness from the last call that finished (D).
asio::awaitable<void> manager::keep_awake() {
    asio::steady_timer timer(executor_);
    for (;;) {
        timer.expires_after(options_.server_timeout / 3);
        co_await timer.async_wait(asio::use_awaitable);
        std::vector<std::string> ids;
        for (const auto& [key, each] : entries_) {
            if (!each->leases.empty() && probe_ != nullptr) {
                ids.push_back(each->record.sandbox_id);
            }
        }
        for (const std::string& id : ids) {
            asio::co_spawn(executor_, probe_->keep_awake(id), asio::detached);
        }
    }
}

} // namespace sandboxd::sandbox
