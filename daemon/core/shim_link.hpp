// Keeps in touch with one command's runner in the sandbox across any number of lost connections.
//
// Same way of working as the other machines: told what happened, it answers what to do next. Its
// rule: `run` may start the command and is sent (again) only until the shim has said its first
// word, because the claim in the sandbox makes it start once at the most; from then on only
// `follow` is sent, which never starts anything. What can no longer be found is lost: its outcome
// is unknown, and nothing is run again.
#pragma once

#include "base/error.hpp"
#include "cloud/failure.hpp"
#include "core/backoff.hpp"
#include "core/exec_fsm.hpp"
#include "core/shim_frames.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::core {

struct shim_link_limits {
    // Of answers in a row by a platform that is reached and does not say whether the command runs,
    // before the shim's first word.
    milliseconds no_word{60'000};
    // In which nobody can be reached, or is too busy: the platform has stopped the sandbox by then.
    milliseconds outage{3'600'000};
    int puzzles = 5; // answers in a row that make no sense and bring nothing on
};

class shim_link {
public:
    enum class action {
        install, // put the shim into the sandbox, then on_installed
        run,     // POST `shim run`; then on_answering or on_post_failed
        follow,  // POST `shim follow` from pos(); likewise
        read,    // the next frame or the end of the stream
        wait,    // for `delay`, then on_waited
        deliver, // `data` is the command's; then read
        ended,   // `exit` stands; nothing follows
        refused, // certainly not run: `failure` is for whoever may send it again elsewhere; nothing
                 // follows
        unusable, // the shim cannot run there, for the reason `text`; nothing has run; nothing
                  // follows
    };
    struct step {
        action what = action::read;
        milliseconds delay{0};
        shim_data data{};
        std::optional<cloud::failure> failure;
        std::string text;
    };

    // `installed`: the shim is known to be in the sandbox. `from`: follow only, from that position,
    // what was sent before; nothing: a new command. `cwd`: the directory asked for, for people.
    shim_link(bool installed, std::optional<std::uint64_t> from, std::string_view cwd = {},
              shim_link_limits limits = {});

    // So much goes along that the kernel may refuse to start the shim: that says nothing of it.
    void expect_long_arguments() noexcept { long_arguments_ = true; }

    step begin();
    step on_installed();
    step on_not_installed(std::string why,
                          bool unusable); // else: a failure that says nothing of the shim
    step on_install_failed(milliseconds now, const cloud::failure& failure);
    step on_answering(); // 200: frames may come
    step on_post_failed(milliseconds now, const cloud::failure& failure);
    step on_frame(milliseconds now, shim_frame frame);
    // The platform's own end of the stream, told by `text` for people. `never_ran`: it says that
    // the shim could not be executed.
    step on_terminal(milliseconds now, std::string_view text, bool never_ran);
    step on_cut(milliseconds now, std::string_view why);      // the stream ended without one
    step on_nonsense(milliseconds now, std::string_view why); // what came is not what a shim prints
    step on_waited();
    // Instead of sending `run` once more: the sandbox has booted anew since it was first sent.
    step on_another_boot();
    // We have closed the connection ourselves, as nobody read it any more.
    step on_let_go();

    // After `ended`.
    const exec_exit& exit() const noexcept { return exit_; }
    // Where to go on: bytes of output so far, both streams.
    std::uint64_t pos() const noexcept { return pos_; }
    // The shim has spoken to us: the id is claimed or was found not to be.
    bool heard() const noexcept { return spoken_; }
    // Lost, after the platform has ended each call without a word of the shim.
    bool would_not_start() const noexcept { return !spoken_ && mute_ > limits_.puzzles; }
    // How often its runner has ended before it started anything, so that it is run once more.
    int starts_over() const noexcept { return reruns_; }
    std::uint64_t dropped() const noexcept { return dropped_; } // bytes the sandbox had to give up
    // Lost, because something in this boot of the sandbox has killed its runner.
    bool runner_gone() const noexcept { return runner_gone_; }
    // Each `run` that was sent has brought the shim's word, or certainly nothing. So none can
    // arrive late, and the sandbox may forget the id.
    bool certain() const noexcept { return certain_ && !run_out_; }

private:
    step act(action what) const;
    step next_post();
    bool long_visit(milliseconds now) const noexcept;
    void doubt(); // a `run` may have taken effect, now or later
    step again(milliseconds now, std::string_view why, milliseconds at_least = milliseconds(0));
    step after(milliseconds pause);
    step puzzled(milliseconds now, std::string_view why);
    step crowded(milliseconds now);
    step lost(std::string why, started ran);
    step ended(exec_exit exit);
    step on_note(milliseconds now, const shim_note& note);
    step on_exit(const shim_note& note);
    // That it is refused, or cannot run there, can be said no more.
    bool committed() const noexcept { return heard_ || doubtful_ || opened_; }
    step on_lost(milliseconds now, const shim_note& note);
    step on_error(milliseconds now, const shim_note& note);
    static exec_exit not_started(const shim_note& note);

    shim_link_limits limits_;
    bool installed_;
    bool follow_only_;
    bool tried_install_ = false; // since its last word
    bool heard_;                 // at some time: only to be followed
    bool spoken_ = false;        // to us
    bool opened_ = false;        // once it had; stays so when another runner has to begin anew
    std::string cwd_;
    bool heard_before_ = false; // in an earlier call than this one
    bool doubtful_ = false;     // a `run` may have taken effect
    bool certain_ = true;
    bool run_out_ = false;                   // what became of the last `run` is still to come
    std::optional<milliseconds> greeted_at_; // in this call
    std::uint64_t came_with_ = 0;            // pos_ when this call began
    bool data_seen_ = false;
    std::string notice_; // of the runner, for the client
    std::uint64_t pos_ = 0;
    std::uint64_t dropped_ = 0;
    bool runner_gone_ = false;
    bool long_arguments_ = false;
    int mute_ = 0; // calls that have ended without a word of the shim
    int puzzles_ = 0;
    int reruns_ = 0;
    std::optional<milliseconds> silent_since_;
    std::optional<milliseconds> wordless_since_; // reached, before the first word
    std::optional<milliseconds> crowded_since_;
    exec_exit exit_;
    backoff retry_{milliseconds(50), milliseconds(10'000)};
};

} // namespace sandboxd::core
