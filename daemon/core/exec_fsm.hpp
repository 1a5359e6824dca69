// The life of one command, from the request to its exit.
//
//   acquiring -> sending -> running -> ending -> done
//
// A resumed one was sent by an earlier daemon: it is looked for in the sandbox that it was sent to,
// never sent again, and without that sandbox it is lost.
//
// The machine is told what happened and answers with what to do next. Its one promise: a command is
// sent to the platform again only when it certainly has not run (nothing was sent, or the platform
// refused it: 404, 409, 429); after anything else the outcome is what the platform said, or
// unknown. Every path ends in exactly one `finish`.
//
// While a command is being ended, its runner's word goes first: one that had ended by itself, or by
// its runner's own clock, before the kill reached it is told as that, whoever wanted to end it. An
// end that was told in doubt can be put right later (`correct`), when its runner is heard again.
#pragma once

#include "base/error.hpp"
#include "cloud/failure.hpp"
#include "core/backoff.hpp"
#include "core/command.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::core {

enum class exit_reason { exited, timed_out, cancelled, lost, failed };
enum class started { yes, no, unknown };

std::string_view to_string(exit_reason reason) noexcept;
std::string_view to_string(started value) noexcept;

inline constexpr int timed_out_code = 124; // as timeout(1)
inline constexpr int cancelled_code = 130; // as a shell after Ctrl-C

struct exec_exit {
    exit_reason reason = exit_reason::failed;
    std::optional<int> returncode; // nothing: lost or failed
    started ran = started::unknown;
    std::string message; // for people; empty when there is nothing to say
    std::optional<rpc_error> error;
    bool kill_unconfirmed =
        false; // lost, or its processes may have survived the time-out or cancel
    std::optional<std::uint64_t> output_end; // where the runner said that its output ends
    bool more_output = false; // may be in the sandbox: the end was told before its last output
    bool background = false;  // when its runner told that, some of its processes lived on
};

struct exec_limits {
    milliseconds refused{300'000};    // of 429 answers in a row (queue-timeout)
    milliseconds unreachable{30'000}; // of failures to connect in a row
    int wrong_state = 3;              // 404 or 409 answers
    milliseconds linger{
        500}; // after a confirmed kill, for the last output and the stream's own end
    milliseconds answer{
        2'000};               // for the platform's answer, when a cancel comes while it is awaited
    milliseconds rest{2'000}; // for output and end of what had ended, or run unheard, before the
                              // kill
    milliseconds unanswered{
        1'500}; // beyond its own time, for a command of which nothing was heard since it was sent
    milliseconds kill_cancelled{3'000};  // to reach the sandbox, for the kill; while that is tried
    milliseconds kill_timed_out{10'000}; // nobody is told an end. A cancel has somebody waiting
};

// What a confirmed kill has settled.
enum class kill_reach {
    so_far,       // none of its processes is left; were it to start late, it would run
    for_good,     // nor can it start any more: its runner is known, and what that did is told by it
    before_start, // it has never started, and cannot any more
    after_end,    // it is for good; and the command itself had ended before
    with_sandbox  // it is for good, as its sandbox does not run any more
};

class exec_fsm {
public:
    enum class action {
        acquire,     // get a running sandbox and hold it; resumed: its own, if that still runs
        release_bad, // the sandbox was not what it seemed: forget its state, then acquire
        send,        // POST the command; resumed: look for it
        wait,        // for `delay`, then on_waited
        read,        // start reading the stream
        arm,         // start the command's own clock anew, if it has a limit: that and `delay`
                     // from now, then on_deadline. Resumed: from when the last daemon did
        kill,        // end the command's processes, then on_killed
        look,        // read on, and ask its runner how it had ended; then on_found
        linger,      // for `delay`, then on_lingered
        finish,      // say `exit`; nothing but `correct` follows
        correct      // `exit` has changed, as more is known
    };
    struct step {
        action what;
        milliseconds delay{0};
    };
    using steps = std::vector<step>;

    explicit exec_fsm(exec_limits limits = {}) noexcept : limits_(limits) {}

    steps begin();
    steps resume();                 // instead of begin
    steps give_up(std::string why); // likewise: it was sent and cannot be looked for
    void restore(exec_exit exit);   // likewise: it has ended before
    steps on_acquired();
    steps on_not_acquired(rpc_error error);
    steps on_waited();
    steps on_posted(); // it goes out now, what it needs being in place; again at each try
    steps on_sent();   // it is known to have been taken: 200, or its runner's first word
    steps on_send_failed(milliseconds now, const cloud::failure& failure);
    steps on_not_sent(rpc_error error); // what it needs could not be put in place
    steps on_output();                  // each piece
    steps on_exited(int returncode);
    steps on_refused(std::string message);   // the stream's {"error": ...} line
    steps on_cut(const cloud::failure& why); // the stream ended without a terminal line
    steps on_verdict(exec_exit exit);        // the in-sandbox runner's own word
    // A second one counts only if it is sharper. `early`: what was sent and has not been answered
    // can be killed too, and cannot start after that.
    steps on_cancel(kill_signal signal, bool early = false);
    steps on_deadline();
    steps on_killed(bool confirmed, std::string why, kill_reach reach = kill_reach::so_far);
    steps on_late_kill(); // confirmed, of one that had been told to be in doubt
    steps on_found(std::optional<exec_exit> how); // nothing: that could not be found out
    steps on_lingered();
    steps on_internal_error(std::string_view what); // a part of the daemon has failed: no hang

    bool done() const noexcept { return phase_ == phase::done; }
    bool acquiring() const noexcept { return phase_ == phase::acquiring; }
    bool sending() const noexcept { return phase_ == phase::sending; }
    bool running() const noexcept { return phase_ == phase::running; }
    bool ending() const noexcept { return phase_ == phase::ending; }
    kill_signal signal() const noexcept { return signal_; }
    // For so long a kill that does not reach the sandbox is tried again.
    milliseconds kill_patience() const noexcept;
    // Told to wait, it is this that is waited for, for people.
    const std::string& waiting_for() const noexcept { return waiting_for_; }
    const exec_exit& exit() const noexcept { return exit_; } // valid once done
    // Nothing that its runner may still say would change it.
    bool certain() const noexcept {
        return done() && !exit_.more_output && !exit_.kill_unconfirmed;
    }

private:
    enum class phase { acquiring, sending, running, ending, done };

    steps finish(exec_exit exit);
    steps fail_unstarted(rpc_error error);
    steps lose(std::string why, error_name name);
    steps end(exit_reason why);
    steps kill_again();
    steps on_stream_over();
    steps on_late_verdict(exec_exit exit);
    exec_exit ended() const;
    exec_exit ended_unstarted() const;

    exec_limits limits_;
    phase phase_ = phase::acquiring;
    exec_exit exit_;
    exit_reason ending_as_ = exit_reason::cancelled;
    kill_signal signal_ = kill_signal::kill;
    bool resumed_ = false;
    bool cancel_wanted_ = false; // while sending: acted upon when the platform has answered
    bool answered_ = false;      // the platform took the command, or its runner was heard of
    bool output_seen_ = false;
    bool stream_over_ = false;
    std::optional<exec_exit> verdict_; // of its runner, while it is being ended
    bool after_end_ = false;           // it had ended before the kill, it is not known how
    bool looking_ = false;
    int kills_ = 0;               // under way
    bool kill_confirmed_ = false; // by the last of them, or by one that holds for good
    bool killed_for_good_ = false;
    bool killed_twice_ = false;
    bool never_begun_ = false; // says the last place that would know, though it was heard of
    bool waiting_to_send_ = false;
    std::string waiting_for_;
    std::string unconfirmed_;
    int wrong_states_ = 0;
    std::optional<milliseconds> refused_since_;
    std::optional<milliseconds> unreachable_since_;
    backoff retry_{milliseconds(250), milliseconds(5'000)};
};

} // namespace sandboxd::core
