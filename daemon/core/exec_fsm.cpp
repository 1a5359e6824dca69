#include "core/exec_fsm.hpp"

#include "core/cloud_error.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {
namespace {

using kind = cloud::failure_kind;

} // namespace

std::string_view to_string(exit_reason reason) noexcept {
    switch (reason) {
    case exit_reason::exited:
        return "exited";
    case exit_reason::timed_out:
        return "timed_out";
    case exit_reason::cancelled:
        return "cancelled";
    case exit_reason::lost:
        return "lost";
    case exit_reason::failed:
        return "failed";
    }
    return "failed";
}

std::string_view to_string(started value) noexcept {
    switch (value) {
    case started::yes:
        return "yes";
    case started::no:
        return "no";
    case started::unknown:
        return "unknown";
    }
    return "unknown";
}

exec_fsm::steps exec_fsm::begin() {
    return {{action::acquire}};
}

exec_fsm::steps exec_fsm::resume() {
    resumed_ = true;
    return {{action::arm, limits_.unanswered}, {action::acquire}};
}

exec_fsm::steps exec_fsm::give_up(std::string why) {
    return lose(std::move(why), error_name::outcome_unknown);
}

void exec_fsm::restore(exec_exit exit) {
    phase_ = phase::done;
    exit_ = std::move(exit);
}

exec_fsm::steps exec_fsm::finish(exec_exit exit) {
    phase_ = phase::done;
    exit_ = std::move(exit);
    exit_.kill_unconfirmed = exit_.kill_unconfirmed || exit_.reason == exit_reason::lost;
    return {{action::finish}};
}

exec_fsm::steps exec_fsm::on_acquired() {
    if (phase_ != phase::acquiring) {
        return {};
    }
    phase_ = phase::sending;
    return {{action::send}};
}

exec_fsm::steps exec_fsm::on_not_acquired(rpc_error error) {
    if (phase_ != phase::acquiring) {
        return {};
    }
    return fail_unstarted(std::move(error));
}

exec_fsm::steps exec_fsm::on_waited() {
    if (phase_ != phase::sending || !waiting_to_send_) {
        return {};
    }
    waiting_to_send_ = false;
    return {{action::send}};
}

// Its own time begins when it is known to have begun. Until then another, longer clock runs, for a
// platform that says nothing at all; not over what goes before, however long that takes.
exec_fsm::steps exec_fsm::on_posted() {
    if (phase_ != phase::sending || resumed_) {
        return {}; // resumed: its clock has been running all along
    }
    return {{action::arm, limits_.unanswered}};
}

exec_fsm::steps exec_fsm::on_sent() {
    if (phase_ == phase::ending) {
        if (std::exchange(answered_, true)) {
            return {};
        }
        if (killed_for_good_) {
            return {{action::read}, {action::linger, limits_.rest}};
        }
        steps next = kill_again(); // the kill before it may have come too early
        next.insert(next.begin(), {action::read});
        return next;
    }
    if (phase_ != phase::sending) {
        return {};
    }
    answered_ = true;
    phase_ = phase::running;
    steps next{{action::read}};
    if (!resumed_) {
        next.insert(next.begin(), {action::arm});
    }
    if (cancel_wanted_) {
        const steps more = end(exit_reason::cancelled);
        next.insert(next.end(), more.begin(), more.end());
    }
    return next;
}

exec_fsm::steps exec_fsm::on_send_failed(milliseconds now, const cloud::failure& failure) {
    const bool certainly_not_run =
        !failure.effect_unknown() && failure.kind != kind::not_found_unproven;
    if (phase_ == phase::ending && answered_) {
        return {}; // its runner was heard of on another way
    }
    if (phase_ == phase::ending || (phase_ == phase::sending && cancel_wanted_)) {
        // Whether it started is open otherwise: then the kill goes on (or begins now) and says how
        // it ended.
        if (certainly_not_run) {
            return finish(ended_unstarted());
        }
        return phase_ == phase::ending ? steps{} : end(exit_reason::cancelled);
    }
    if (phase_ != phase::sending) {
        return {};
    }
    rpc_error error = error_from(failure, "starting the command");
    if (!certainly_not_run) {
        return lose(error.what(), error_name::outcome_unknown);
    }
    switch (failure.kind) {
    case kind::conflict:
    case kind::not_found:
        if (++wrong_states_ > limits_.wrong_state) {
            // Each time in between it was found running. So it is not gone, whatever a 404 says
            // here.
            return fail_unstarted({error_name::cloud_error,
                                   error.what() + std::string("; yet the sandbox is said to run")});
        }
        unreachable_since_.reset();
        refused_since_.reset();
        phase_ = phase::acquiring;
        return {{action::release_bad}};
    case kind::unreachable:
    case kind::rate_limited:
    case kind::cap_reached: {
        const bool unreachable = failure.kind == kind::unreachable;
        if (!unreachable) {
            unreachable_since_.reset(); // any answer ends that row
        }
        std::optional<milliseconds>& since = unreachable ? unreachable_since_ : refused_since_;
        if (!since) {
            since = now;
        }
        const milliseconds limit = unreachable ? limits_.unreachable : limits_.refused;
        const milliseconds waited = now - *since;
        if (waited >= limit) {
            return fail_unstarted(std::move(error));
        }
        milliseconds delay = retry_.next();
        if (failure.retry_after) {
            delay = std::max<milliseconds>(delay, *failure.retry_after);
        }
        delay = std::min(delay, limit - waited); // whoever asked was promised an answer by then
        waiting_to_send_ = true;
        waiting_for_ = error.what() + std::string("; trying again");
        return {{action::wait, delay}};
    }
    default:
        return fail_unstarted(std::move(error));
    }
}

exec_fsm::steps exec_fsm::on_not_sent(rpc_error error) {
    if (phase_ == phase::ending && answered_) {
        return {};
    }
    if (phase_ == phase::ending || (phase_ == phase::sending && cancel_wanted_)) {
        return finish(ended_unstarted());
    }
    return phase_ == phase::sending ? fail_unstarted(std::move(error)) : steps{};
}

exec_fsm::steps exec_fsm::fail_unstarted(rpc_error error) {
    if (resumed_) {
        return lose(error.what(), error_name::outcome_unknown);
    }
    exec_exit exit;
    exit.reason = exit_reason::failed;
    exit.ran = started::no;
    exit.message = error.what() + std::string("; the command has not run");
    exit.error = std::move(error);
    return finish(std::move(exit));
}

exec_fsm::steps exec_fsm::lose(std::string why, error_name name) {
    exec_exit exit;
    exit.reason = exit_reason::lost;
    exit.ran = answered_ ? started::yes : started::unknown;
    exit.message = std::move(why);
    exit.message += answered_ ? "; its outcome is unknown, and it was not run again"
                              : "; whether the command ran is unknown, and it was not sent again";
    exit.error.emplace(name, exit.message);
    return finish(std::move(exit));
}

exec_fsm::steps exec_fsm::on_internal_error(std::string_view what) {
    if (phase_ == phase::done) {
        return {};
    }
    rpc_error error(error_name::internal_error, "the daemon failed: " + std::string(what));
    if (phase_ == phase::acquiring) {
        return fail_unstarted(std::move(error));
    }
    return lose(error.what(), error_name::internal_error);
}

exec_fsm::steps exec_fsm::on_output() {
    output_seen_ = true;
    return {};
}

} // namespace sandboxd::core
