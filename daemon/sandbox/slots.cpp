// Places among the account's active sandboxes: who waits for one is told how it stands, and idle
// sandboxes make room. Decides nothing itself (core/slot_queue).
#include "core/cloud_error.hpp"
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

namespace {

constexpr milliseconds tell_period{1'000}; // who waits is told so at least so often
// Those who wait want to know better than the reaper does.
constexpr milliseconds ask_again{10'000};
constexpr std::size_t most_named = 5;

// Not what the operation says it is doing: that may be a text that names others in turn.
std::string name_of(operation_kind kind) {
    switch (kind) {
    case operation_kind::bring_up:
        return "being started";
    case operation_kind::stop:
        return "being stopped";
    case operation_kind::terminate:
        return "being deleted";
    }
    return "in use";
}

} // namespace

std::vector<core::slot_user> manager::slot_users() const {
    std::vector<core::slot_user> users;
    const milliseconds at = awake();
    for (const auto& [key, each] : entries_) {
        const core::sandbox_record& record = each->record;
        if (!is_of_account(*each) || !(core::is_active(record.state) || record.create_pending)) {
            continue;
        }
        core::slot_user user{key};
        user.leaving = record.state == core::life_state::stopping ||
                       (each->current && each->current->kind != operation_kind::bring_up);
        // Nothing is stopped before the first reconcile. One that cannot be resumed makes no room.
        user.evictable = is_idle(*each) && reconciled_ && record.persistent;
        user.asking = each->asking;
        user.idle_for = at - each->last_used;
        user.work = each->work.what;
        const bool may_have_ended =
            user.work == core::background::running || user.work == core::background::failed;
        if (may_have_ended && at - each->work_told >= ask_again) {
            user.work = core::background::not_asked;
        }
        users.push_back(std::move(user));
    }
    return users;
}

asio::awaitable<void> manager::tend_queue() {
    for (;;) {
        const core::slot_queue::decision decided = places_.decide(now(), slot_users());
        apply(decided);
        if (places_.waiting() == 0) {
            co_await pulse_->activity.wait();
            continue;
        }
        for (const auto& [key, each] : entries_) {
            if (each->current && each->current->slot == operation::place::waiting) {
                each->changed.notify_all();
            }
        }
        asio::steady_timer timer(
            executor_, std::min(decided.look_again_in.value_or(tell_period), tell_period));
        co_await (timer.async_wait(asio::use_awaitable) || pulse_->activity.wait());
    }
}

void manager::apply(const core::slot_queue::decision& decided) {
    const auto move_on = [this](core::slot_queue::ticket which, operation::place to) {
        for (const auto& [key, each] : entries_) {
            if (each->current && each->current->ticket == which) {
                each->current->slot = to;
                each->changed.notify_all();
            }
        }
    };
    for (const core::slot_queue::ticket each : decided.granted) {
        move_on(each, operation::place::granted);
    }
    for (const core::slot_queue::ticket each : decided.timed_out) {
        move_on(each, operation::place::timed_out);
    }
    for (const core::sandbox_key& key : decided.evict) {
        stop_idle(key, "idle, and its place is wanted");
    }
    for (const core::sandbox_key& key : decided.ask) {
        ask_inside(key);
    }
}

std::string manager::who_holds_places() const {
    std::string text;
    std::size_t named = 0;
    std::size_t held = 0;
    for (const auto& [key, each] : entries_) {
        const core::sandbox_record& record = each->record;
        if (!is_of_account(*each) || !(core::is_active(record.state) || record.create_pending)) {
            continue;
        }
        if (each->current && each->current->slot == operation::place::waiting) {
            continue; // it holds what it has, if anything, against nobody
        }
        ++held;
        if (++named <= most_named) {
            const std::string why = each->current ? name_of(each->current->kind) : why_awake(*each);
            text +=
                (text.empty() ? "" : ", ") + describe(key) + (why.empty() ? "" : " (" + why + ")");
        }
    }
    if (named > most_named) {
        text += ", and " + std::to_string(named - most_named) + " more";
    }
    for (const cloud::sandbox_info& lost : orphans_) {
        if (core::is_active(core::life_state_of(lost.state))) {
            ++held;
            text += (text.empty() ? "" : ", ") + lost.id +
                    " (made by this daemon, without a record: deepinfra-sandboxd doctor)";
        }
    }
    if (held < static_cast<std::size_t>(options_.slots.max_active) && places_.refused()) {
        text += std::string(text.empty() ? "" : ", and ") + "other programs of this account";
    }
    return text;
}

asio::awaitable<std::optional<rpc_error>>
manager::wait_for_place(std::shared_ptr<entry> each, std::shared_ptr<operation> op,
                        std::optional<cloud::failure> refused) {
    if (std::optional<rpc_error> spent = over_budget()) {
        places_.leave(std::exchange(op->ticket, 0));
        co_return spent;
    }
    if (op->ticket != 0 && refused) {
        places_.on_refused(op->ticket, now(), *refused, account_.jitter());
    } else {
        op->ticket = places_.enter(each->record.key, now());
    }
    op->slot = operation::place::waiting;
    const milliseconds since = now();
    apply(places_.decide(now(), slot_users())); // where there is a place, nobody waits
    pulse_->activity.notify_all();
    place_wanted_.notify_all();
    std::optional<rpc_error> problem;
    for (bool first = true; op->slot == operation::place::waiting; first = false) {
        if (!first && op->askers == 0) {
            problem.emplace(error_name::cancelled, "nobody waits for a sandbox for " +
                                                       describe(each->record.key) + " any more");
            op->abandoned = true;
            break;
        }
        const std::size_t place = places_.place(op->ticket);
        const std::string holders = who_holds_places();
        if (place != 0 && !first) {
            op->doing = "waiting for one of " + std::to_string(options_.slots.max_active) +
                        " active sandboxes to stop (place " + std::to_string(place) + " of " +
                        std::to_string(places_.waiting()) + " in the queue" +
                        (holders.empty() ? "" : "; held by " + holders) + ")";
            const std::optional<cloud::failure>& why = places_.refused();
            if (why && why->kind == cloud::failure_kind::rate_limited) {
                op->doing = "the platform asks for patience (" + why->message + "); " + op->doing;
            }
            each->changed.notify_all();
        }
        co_await each->changed.wait();
    }
    if (op->slot == operation::place::timed_out) {
        const auto seconds = std::chrono::ceil<std::chrono::seconds>(now() - since);
        const std::string waited = "; waited " + std::to_string(seconds.count()) + " s for a place";
        const std::string holders = who_holds_places();
        const std::optional<cloud::failure>& why = places_.refused();
        if (why && why->kind == cloud::failure_kind::rate_limited) {
            problem = core::machine_error_from(*why, op->doing);
        } else {
            problem.emplace(error_name::cap_reached,
                            "the account has as many active sandboxes as it may (" +
                                std::to_string(options_.slots.max_active) +
                                "), and none of ours could be stopped" + waited +
                                (holders.empty() ? "" : "; held by " + holders));
        }
    }
    if (!problem) {
        problem = over_budget(); // it may have been spent meanwhile
    }
    if (problem) {
        places_.leave(op->ticket);
        op->ticket = 0;
    }
    op->slot = operation::place::none;
    co_return problem;
}

} // namespace sandboxd::sandbox
