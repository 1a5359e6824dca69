// The part of the command's machine that ends it: what its stream, its runner and the kills say,
// and which of them is the truth. See exec_fsm.hpp.
#include "core/exec_fsm.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {
namespace {

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
    const bool heard = answered_ && !never_begun_;
    exit.ran = heard || output_seen_ ? started::yes : started::unknown;
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
    answered_ = answered_ || exit.ran == started::yes;
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
    if (phase_ != phase::ending) {
        return {};
    }
    --kills_;
    const bool for_good = confirmed && reach != kill_reach::so_far;
    if (kill_confirmed_ || (kills_ > 0 && !for_good)) {
        return {}; // it is settled, or the later kill has seen more
    }
    if (!confirmed && !killed_for_good_) {
        unconfirmed_ = "that its processes have ended could not be confirmed (" + why +
                       "): they may still be running";
        return finish(ended());
    }
    kill_confirmed_ = true;
    if (reach == kill_reach::before_start && !answered_) {
        return finish(ended_unstarted());
    }
    killed_for_good_ = killed_for_good_ || for_good;
    never_begun_ = never_begun_ || reach == kill_reach::before_start;
    if (verdict_) {
        return finish(ended());
    }
    after_end_ = after_end_ || reach == kill_reach::after_end;
    if (after_end_ || (reach == kill_reach::for_good && !answered_)) {
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
