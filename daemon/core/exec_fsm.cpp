#include "core/exec_fsm.hpp"

#include "core/cloud_error.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {
namespace {

using kind = cloud::failure_kind;

// Not by the kill: it ended, or could not be started, before that reached it.
bool ended_before_kill(const exec_exit& verdict) noexcept {
    return verdict.reason == exit_reason::exited || verdict.reason == exit_reason::timed_out ||
           verdict.reason == exit_reason::failed;
}

constexpr const char* found_ended =
    "it had ended before it could be ended, and how it had could not be found out";

void add_sentence(std::string& to, std::string_view more) {
    if (!to.empty() && !more.empty()) {
        to += "; ";
    }
    to += more;
}

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

exec_exit exec_fsm::ended() const {
    const bool timed_out = ending_as_ == exit_reason::timed_out;
    exec_exit exit;
    if (verdict_ && ended_before_kill(*verdict_)) {
        exit = *verdict_;
        add_sentence(exit.message, unconfirmed_);
        exit.kill_unconfirmed = !unconfirmed_.empty();
        return exit;
    }
    if (verdict_ && verdict_->ran == started::no) {
        return ended_unstarted();
    }
    exit.reason = ending_as_;
    exit.returncode = timed_out ? timed_out_code : cancelled_code;
    exit.ran = answered_ ? started::yes : started::unknown;
    exit.message = unconfirmed_;
    if (!answered_ && !killed_for_good_ && exit.message.empty()) {
        exit.message = "the platform had not said whether the command had started; should it start "
                       "late, it will run on";
    }
    exit.kill_unconfirmed = !exit.message.empty();
    if (verdict_) {
        exit.output_end = verdict_->output_end;
        add_sentence(exit.message, verdict_->message);
    }
    return exit;
}

exec_exit exec_fsm::ended_unstarted() const {
    const bool timed_out = phase_ == phase::ending && ending_as_ == exit_reason::timed_out;
    exec_exit exit;
    exit.reason = timed_out ? exit_reason::timed_out : exit_reason::cancelled;
    exit.returncode = timed_out ? timed_out_code : cancelled_code;
    exit.ran = started::no;
    exit.message = timed_out ? "timed out before it started" : "cancelled before it started";
    return exit;
}

exec_fsm::steps exec_fsm::on_exited(int returncode) {
    if (phase_ == phase::running) {
        exec_exit exit;
        exit.reason = exit_reason::exited;
        exit.returncode = returncode;
        exit.ran = started::yes;
        return finish(std::move(exit));
    }
    return on_stream_over();
}

// While its processes are being ended: the stream's end speaks of the first of them at the most,
// only the kill of all.
exec_fsm::steps exec_fsm::on_stream_over() {
    stream_over_ = true;
    if (phase_ != phase::ending || !kill_confirmed_ || looking_) {
        return {};
    }
    if (after_end_ && !verdict_) {
        return lose(found_ended, error_name::outcome_unknown);
    }
    return finish(ended());
}

exec_fsm::steps exec_fsm::on_refused(std::string message) {
    if (phase_ != phase::running) {
        return on_stream_over();
    }
    exec_exit exit;
    exit.reason = exit_reason::failed;
    exit.ran = output_seen_ ? started::yes : started::unknown;
    exit.message = "the platform ended the command: " + message;
    exit.error.emplace(error_name::outcome_unknown, exit.message);
    return finish(std::move(exit));
}

exec_fsm::steps exec_fsm::on_cut(const cloud::failure& why) {
    if (phase_ != phase::running) {
        return on_stream_over();
    }
    exec_exit exit;
    exit.reason = exit_reason::lost;
    exit.ran = output_seen_ ? started::yes : started::unknown;
    exit.message = "the connection to the command was lost (" + why.message +
                   "); it may still be running, its outcome is unknown, and it was not run again";
    exit.error.emplace(error_name::outcome_unknown, exit.message);
    return finish(std::move(exit));
}

exec_fsm::steps exec_fsm::on_verdict(exec_exit exit) {
    if (phase_ == phase::running) {
        return finish(std::move(exit));
    }
    if (phase_ == phase::done) {
        return on_late_verdict(std::move(exit));
    }
    if (phase_ != phase::ending) {
        return {};
    }
    if (exit.reason == exit_reason::lost) {
        return on_stream_over();
    }
    verdict_ = std::move(exit);
    stream_over_ = true;
    // A time-out wants no more than that. Whoever cancels also wants what it left behind ended.
    const bool enough = ending_as_ == exit_reason::timed_out && ended_before_kill(*verdict_);
    return enough || kill_confirmed_ ? finish(ended()) : steps{};
}

// The end was told in doubt, and somebody has looked again.
exec_fsm::steps exec_fsm::on_late_verdict(exec_exit verdict) {
    if (certain()) {
        return {};
    }
    if (exit_.more_output) {
        exit_.more_output = false;
        if (verdict.reason == exit_reason::lost) {
            add_sentence(exit_.message, "the last of its output is lost");
        } else {
            exit_.output_end = verdict.output_end;
            exit_.message = std::move(verdict.message);
        }
        return {{action::correct}};
    }
    if (verdict.reason == exit_reason::lost) {
        return {};
    }
    const bool by_our_time = verdict.reason == exit_reason::cancelled &&
                             exit_.reason == exit_reason::timed_out && verdict.ran != started::no;
    exit_ = std::move(verdict);
    if (by_our_time) { // the runner does not know why it was told to kill it
        exit_.reason = exit_reason::timed_out;
        exit_.returncode = timed_out_code;
    }
    return {{action::correct}};
}

exec_fsm::steps exec_fsm::end(exit_reason why) {
    phase_ = phase::ending;
    ending_as_ = why;
    return kill_again();
}

exec_fsm::steps exec_fsm::on_late_kill() {
    const bool doubtful =
        phase_ == phase::done && exit_.kill_unconfirmed && exit_.reason != exit_reason::lost;
    if (!doubtful) {
        return {};
    }
    exit_.kill_unconfirmed = false;
    exit_.message = "its processes were ended later";
    return {{action::correct}};
}

milliseconds exec_fsm::kill_patience() const noexcept {
    return ending_as_ == exit_reason::timed_out ? limits_.kill_timed_out : limits_.kill_cancelled;
}

exec_fsm::steps exec_fsm::kill_again() {
    kill_confirmed_ = false;
    ++kills_;
    return {{action::kill}};
}

exec_fsm::steps exec_fsm::on_cancel(kill_signal signal, bool early) {
    switch (phase_) {
    case phase::acquiring:
        if (resumed_) {
            signal_ = signal;
            return end(exit_reason::cancelled);
        }
        return finish(ended_unstarted());
    case phase::sending:
        if (waiting_to_send_) {
            return finish(ended_unstarted());
        }
        if (early) {
            signal_ = signal;
            return end(exit_reason::cancelled);
        }
        // Its processes can be found only once there are any: the answer is a moment away, but not
        // waited for long.
        if (std::exchange(cancel_wanted_, true)) {
            signal_ = std::max(signal_, signal);
            return {};
        }
        signal_ = signal;
        return {{action::linger, limits_.answer}};
    case phase::running:
        signal_ = signal;
        return end(exit_reason::cancelled);
    case phase::ending:
        if (signal > signal_) {
            signal_ = signal;
            return kill_again();
        }
        return {};
    case phase::done:
        return {};
    }
    return {};
}

exec_fsm::steps exec_fsm::on_deadline() {
    const bool sent = phase_ == phase::running || (phase_ == phase::sending && !waiting_to_send_) ||
                      (phase_ == phase::acquiring && resumed_);
    if (!sent) {
        return {};
    }
    signal_ = kill_signal::kill;
    return end(exit_reason::timed_out);
}

exec_fsm::steps exec_fsm::on_killed(bool confirmed, std::string why, kill_reach reach) {
    if (phase_ != phase::ending || --kills_ > 0) {
        return {}; // the later kill has seen more
    }
    if (!confirmed) {
        unconfirmed_ = "that its processes have ended could not be confirmed (" + why +
                       "): they may still be running";
        return finish(ended());
    }
    kill_confirmed_ = true;
    if (reach == kill_reach::before_start && !answered_) {
        return finish(ended_unstarted());
    }
    killed_for_good_ = killed_for_good_ || reach != kill_reach::so_far;
    if (verdict_) {
        return finish(ended());
    }
    if (reach == kill_reach::after_end) {
        after_end_ = true;
        return std::exchange(looking_, true) ? steps{} : steps{{action::look}};
    }
    if (stream_over_) {
        return finish(ended());
    }
    return {{action::linger, limits_.linger}};
}

exec_fsm::steps exec_fsm::on_found(std::optional<exec_exit> how) {
    if (phase_ != phase::ending || !std::exchange(looking_, false)) {
        return {};
    }
    if (how && how->reason != exit_reason::lost) {
        answered_ = true;
        stream_over_ = false; // it is read again
        verdict_ = std::move(how);
    }
    if (!kill_confirmed_) {
        return {}; // a sharper one is under way
    }
    if (stream_over_) {
        return on_stream_over();
    }
    if (verdict_ && verdict_->reason == exit_reason::exited) {
        verdict_->more_output = true; // and read on at its client's pace, as any that has ended
        return finish(ended());
    }
    return {{action::linger, limits_.rest}};
}

exec_fsm::steps exec_fsm::on_lingered() {
    if (phase_ == phase::sending && cancel_wanted_) {
        return end(exit_reason::cancelled);
    }
    if (phase_ != phase::ending || !kill_confirmed_ || looking_) {
        return {};
    }
    if (after_end_) {
        return verdict_ ? finish(ended()) : lose(found_ended, error_name::outcome_unknown);
    }
    if (answered_ && !killed_for_good_ && !std::exchange(killed_twice_, true)) {
        return kill_again(); // its stream goes on: perhaps it was only just starting when it was
                             // looked for
    }
    return finish(ended());
}

} // namespace sandboxd::core
