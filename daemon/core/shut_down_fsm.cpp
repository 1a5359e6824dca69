#include "core/shut_down_fsm.hpp"

#include "core/cloud_error.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {
namespace {

using kind = cloud::failure_kind;

} // namespace

shut_down_fsm::shut_down_fsm(sandbox_record& record, goal wanted, std::string instance,
                             shut_down_limits limits)
    : record_(record), goal_(wanted), instance_(std::move(instance)), limits_(limits) {}

std::string_view shut_down_fsm::doing() const noexcept {
    if (record_.create_pending) {
        return "looking for the sandbox of a create whose answer was lost";
    }
    return goal_ == goal::stopped ? "stopping the sandbox" : "deleting the sandbox";
}

shut_down_fsm::step shut_down_fsm::begin(milliseconds now) {
    since_ = now;
    if (record_.create_pending) {
        note_doubt(record_);
        return act(action::list);
    }
    if (record_.sandbox_id.empty()) {
        return act(action::done);
    }
    return act(goal_ == goal::deleted ? action::remove : action::stop);
}

shut_down_fsm::step shut_down_fsm::on_stop(milliseconds now, const cloud::result<void>& stopped) {
    if (stopped.has_value()) {
        trouble_since_.reset();
        note_state(record_, life_state::stopping);
        return wait_then(action::get, poll_.next());
    }
    if (stopped.error().kind == kind::not_found) {
        return act(action::list);
    }
    if (stopped.error().kind == kind::conflict) {
        return act(action::get); // already stopped, or booting: what it is now decides
    }
    return trouble(now, stopped.error(),
                   stopped.error().effect_unknown() ? action::get : action::stop);
}

shut_down_fsm::step shut_down_fsm::on_remove(milliseconds now, const cloud::result<void>& removed) {
    if (removed.has_value()) {
        return gone();
    }
    if (removed.error().kind == kind::not_found) {
        return act(action::list);
    }
    return trouble(now, removed.error(), action::remove); // deleting twice does no harm
}

shut_down_fsm::step shut_down_fsm::on_get(milliseconds now,
                                          const cloud::result<cloud::sandbox_info>& got) {
    if (got.has_value()) {
        trouble_since_.reset();
        return seen(now, life_state_of(got->state));
    }
    if (got.error().kind == kind::not_found) {
        return act(action::list);
    }
    return trouble(now, got.error(), action::get);
}

shut_down_fsm::step
shut_down_fsm::on_list(milliseconds now,
                       const cloud::result<std::vector<cloud::sandbox_info>>& listed) {
    if (!listed.has_value()) {
        return trouble(now, listed.error(), action::list);
    }
    trouble_since_.reset();
    if (record_.create_pending) {
        return on_tag_listed(*listed);
    }
    const auto found = std::find_if(listed->begin(), listed->end(), [&](const auto& each) {
        return each.id == record_.sandbox_id;
    });
    return found == listed->end() ? gone() : seen(now, life_state_of(found->state));
}

shut_down_fsm::step shut_down_fsm::on_tag_listed(const std::vector<cloud::sandbox_info>& all) {
    if (const cloud::sandbox_info* const found = made_for(all, record_, instance_)) {
        record_.sandbox_id = found->id;
        record_.created_at = found->created_at;
        record_.create_pending = false;
        return act(goal_ == goal::deleted ? action::remove : action::stop);
    }
    if (++absences_ < 2) {
        return wait_then(action::list, look_up_gap);
    }
    record_.create_pending = false;
    return gone();
}

shut_down_fsm::step shut_down_fsm::seen(milliseconds now, life_state state) {
    if (state == life_state::absent) {
        return gone();
    }
    if (goal_ == goal::stopped && state == life_state::stopped) {
        note_state(record_, state);
        return act(action::done);
    }
    if (state != life_state::unknown) {
        note_state(record_, state);
    }
    if (now - since_ >= limits_.settle) {
        return fail({error_name::cloud_error,
                     "the sandbox is still '" + std::string(to_string(state)) + "', " +
                         std::to_string(limits_.settle.count() / 1000) +
                         " s after it was told to " + (goal_ == goal::stopped ? "stop" : "go")});
    }
    if (goal_ == goal::deleted) {
        return wait_then(action::remove, poll_.next());
    }
    // Running again (somebody started it, or the stop was lost): ask again. Still on its way up or
    // down: wait.
    const bool ask_again = state == life_state::running || state == life_state::failed;
    return wait_then(ask_again ? action::stop : action::get, poll_.next());
}

shut_down_fsm::step shut_down_fsm::gone() {
    record_.sandbox_id.clear();
    record_.state = life_state::absent;
    return act(action::done);
}

shut_down_fsm::step shut_down_fsm::on_waited(milliseconds) {
    return act(after_wait_);
}

shut_down_fsm::step shut_down_fsm::on_account_changed() const {
    return fail({error_name::account_mismatch,
                 "while " + std::string(doing()) + ", the daemon's API key was changed"});
}

shut_down_fsm::step shut_down_fsm::wait_then(action next, milliseconds delay) {
    after_wait_ = next;
    return {action::wait, delay, std::nullopt};
}

shut_down_fsm::step shut_down_fsm::fail(rpc_error error) const {
    if (!record_.sandbox_id.empty()) {
        error.sandbox_id = record_.sandbox_id;
    }
    return {action::fail, milliseconds{0}, std::move(error)};
}

shut_down_fsm::step shut_down_fsm::trouble(milliseconds now, const cloud::failure& failure,
                                           action again) {
    if (!trouble_since_) {
        trouble_since_ = now;
    }
    if (!is_transient(failure) && failure.kind != kind::conflict) {
        return fail(plain_error_from(failure, doing()));
    }
    const milliseconds delay =
        std::max(retry_.next(), failure.retry_after.value_or(milliseconds(0)));
    // Nobody sits out a Retry-After of an hour.
    if (now - *trouble_since_ >= limits_.trouble || delay > limits_.settle) {
        return fail(plain_error_from(failure, doing()));
    }
    return wait_then(again, delay);
}

} // namespace sandboxd::core
