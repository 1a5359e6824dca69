#include "core/shim_link.hpp"

#include "base/utf8.hpp"
#include "core/cloud_error.hpp"
#include "core/shim_outcome.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

namespace sandboxd::core {
namespace {

using kind = cloud::failure_kind;

started started_of(std::string_view text) noexcept {
    return text == "yes" ? started::yes : text == "no" ? started::no : started::unknown;
}

std::string seconds_between(milliseconds since, milliseconds now) {
    return std::to_string((now - since).count() / 1000) + " s";
}

// Of a follower that leaves by itself without having brought anything. The shortest that is asked
// for is 1 s, of which its first word takes a little.
constexpr milliseconds least_visit{500};

} // namespace

shim_link::shim_link(bool installed, std::optional<std::uint64_t> from, std::string_view cwd,
                     shim_link_limits limits)
    : limits_(limits), installed_(installed), follow_only_(from.has_value()), heard_(follow_only_),
      cwd_(cwd.empty() ? "/workspace" : repair_utf8(cwd)), pos_(from.value_or(0)) {}

shim_link::step shim_link::act(action what) const {
    step next;
    next.what = what;
    return next;
}

shim_link::step shim_link::next_post() {
    run_out_ = !heard_;
    return act(heard_ ? action::follow : action::run);
}

shim_link::step shim_link::begin() {
    return installed_ || heard_ ? next_post() : act(action::install);
}

shim_link::step shim_link::on_installed() {
    installed_ = true;
    tried_install_ = true;
    return next_post();
}

shim_link::step shim_link::on_not_installed(std::string why, bool unusable) {
    if (committed()) {
        return lost("the shim could not be put back (" + why + ")", started::unknown);
    }
    step next = act(unusable ? action::unusable : action::refused);
    next.text = why;
    if (!unusable) {
        next.failure = cloud::failure{kind::bad_request, 0,
                                      "the shim could not be installed: " + why, std::nullopt};
    }
    return next;
}

// Nothing of the command has been sent yet, so whatever went wrong, it certainly has not run.
shim_link::step shim_link::on_install_failed(milliseconds now, const cloud::failure& failure) {
    run_out_ = false;
    if (committed()) {
        return again(now, failure.message);
    }
    step next = act(action::refused);
    next.failure = failure;
    if (failure.effect_unknown()) {
        next.failure->kind = kind::unreachable;
    }
    return next;
}

shim_link::step shim_link::on_answering() {
    greeted_at_.reset();
    heard_before_ = heard_;
    came_with_ = pos_;
    return act(action::read);
}

bool shim_link::long_visit(milliseconds now) const noexcept {
    return greeted_at_ && now - *greeted_at_ >= least_visit;
}

void shim_link::doubt() {
    if (!heard_) {
        doubtful_ = true;
        certain_ = false;
    }
}

shim_link::step shim_link::on_post_failed(milliseconds now, const cloud::failure& failure) {
    run_out_ = false;
    const bool certain = !failure.effect_unknown() && failure.kind != kind::not_found_unproven;
    const bool not_there = failure.kind == kind::conflict || failure.kind == kind::not_found;
    if (!committed() && certain) {
        step next = act(action::refused);
        next.failure = failure;
        return next;
    }
    if (not_there) {
        // Said again and again: platforms have been seen to contradict themselves.
        return puzzled(now, failure.kind == kind::conflict
                                ? "the sandbox was stopped while the command ran"
                                : "the sandbox is gone");
    }
    if (!certain) {
        doubt();
    }
    const milliseconds pause = failure.retry_after.value_or(std::chrono::seconds(0));
    const bool passes = failure.status == 0 || failure.kind == kind::rate_limited ||
                        failure.kind == kind::no_capacity;
    if (heard_ || passes) {
        return again(now, failure.message, pause);
    }
    if (!wordless_since_) {
        wordless_since_ = now;
    }
    if (now - *wordless_since_ >= limits_.no_word) {
        return lost("for " + seconds_between(*wordless_since_, now) +
                        " the platform has not said whether it took the command (" +
                        failure.message + ")",
                    started::unknown);
    }
    return after(pause);
}

shim_link::step shim_link::on_cut(milliseconds now, std::string_view why) {
    run_out_ = false;
    doubt();
    return again(now, why);
}

shim_link::step shim_link::on_nonsense(milliseconds now, std::string_view why) {
    run_out_ = false;
    doubt();
    return puzzled(now, why);
}

// A connection problem: it passes, or the outage outlasts the sandbox. Also where it is not known
// whether the command has started: the claim lets it start once, whenever `run` arrives.
shim_link::step shim_link::again(milliseconds now, std::string_view why, milliseconds at_least) {
    wordless_since_.reset();
    if (!silent_since_) {
        silent_since_ = now;
    }
    if (now - *silent_since_ >= limits_.outage) {
        return lost("the platform could not be reached for " +
                        seconds_between(*silent_since_, now) + " (" + std::string(why) + ")",
                    started::unknown);
    }
    return after(at_least);
}

shim_link::step shim_link::after(milliseconds pause) {
    step next = act(action::wait);
    next.delay = std::max(retry_.next(), pause);
    return next;
}

// An answer that brings nothing on. It comes from a place that untrusted code controls, so it is
// not taken forever.
shim_link::step shim_link::puzzled(milliseconds now, std::string_view why) {
    if (++puzzles_ > limits_.puzzles) {
        return lost(std::string(why), started::unknown);
    }
    return again(now, why);
}

// The runner lives, and serves as many as it can. That passes, so it is no answer that makes no
// sense; and the command is not given up for it before it would be for an outage.
shim_link::step shim_link::crowded(milliseconds now) {
    if (!crowded_since_) {
        crowded_since_ = now;
    }
    if (now - *crowded_since_ >= limits_.outage) {
        return lost("its runner in the sandbox has had no place for a follower for " +
                        seconds_between(*crowded_since_, now),
                    started::yes);
    }
    return again(now, "too many follow the command");
}

shim_link::step shim_link::on_waited() {
    return next_post();
}

// Nobody expects it there, and it may have run in the boot before.
shim_link::step shim_link::on_another_boot() {
    heard_ = true;
    return next_post();
}

shim_link::step shim_link::on_let_go() {
    greeted_at_.reset();
    return next_post();
}

shim_link::step shim_link::on_terminal(milliseconds now, std::string_view text, bool never_ran) {
    run_out_ = false;
    if (!never_ran) {
        doubt();
    }
    mute_ += greeted_at_ ? 0 : 1;
    // A follower that nobody reads when its time is up leaves without a last word.
    if (long_visit(now)) {
        puzzles_ = 0;
        retry_.reset();
    }
    // Not one word: perhaps the shim is not there. Putting it there starts nothing.
    if (!greeted_at_ && !tried_install_) {
        return act(action::install);
    }
    if (never_ran && !greeted_at_ && !committed() && !long_arguments_) {
        step next = act(action::unusable);
        next.text = text;
        return next;
    }
    return puzzled(now,
                   heard_ ? "the platform ended the connection to the command: " + std::string(text)
                          : std::string(text));
}

shim_link::step shim_link::on_frame(milliseconds now, shim_frame frame) {
    silent_since_.reset();
    if (long_visit(now)) {
        puzzles_ = 0;
        retry_.reset();
    }
    if (auto* data = std::get_if<shim_data>(&frame)) {
        if (data->pos != pos_) {
            return puzzled(now, "the shim went on at another place than asked for");
        }
        puzzles_ = 0;
        retry_.reset();
        data_seen_ = true;
        pos_ = data->pos + data->bytes.size();
        step next = act(action::deliver);
        next.data = std::move(*data);
        return next;
    }
    return on_note(now, std::get<shim_note>(frame));
}

shim_link::step shim_link::on_note(milliseconds now, const shim_note& note) {
    if (note.name == "deepinfra-shim/1") {
        heard_ = true;
        run_out_ = false;
        spoken_ = opened_ = true;
        tried_install_ = false;
        greeted_at_ = now;
        if (note.text("state") == "new" || note.text("state") == "attached") {
            crowded_since_.reset();
        }
        if (const auto pos = note.number("pos"); pos && *pos != pos_) {
            return puzzled(now, "the shim went on at another place than asked for");
        }
        return act(action::read);
    }
    if (note.name == "note" && note.text("name") == "cwd") {
        notice_ = "the working directory " + cwd_ + " could not be entered, so this ran in " +
                  std::string(note.text("cwd"));
        return act(action::read);
    }
    if (note.name == "gap") {
        const std::uint64_t size = note.number("n").value_or(0);
        if (note.number("pos") != pos_) {
            return puzzled(now, "the shim went on at another place than asked for");
        }
        pos_ += size;
        dropped_ += size;
        return act(action::read);
    }
    if (note.name == "exit") {
        return on_exit(note);
    }
    if (note.name == "more") {
        if (note.text("why") == "superseded") {
            return puzzled(now, "another follower of this command has taken over");
        }
        // At once, but not round and round.
        if (pos_ == came_with_ && !long_visit(now)) {
            return puzzled(now, "the shim leaves as soon as it has come");
        }
        puzzles_ = 0;
        return act(action::follow);
    }
    if (note.name == "lost") {
        return on_lost(now, note);
    }
    if (note.name == "error") {
        return on_error(now, note);
    }
    return act(action::read);
}

shim_link::step shim_link::on_exit(const shim_note& note) {
    const started ran = started_of(note.text("started"));
    if (data_seen_ && ran == started::no) {
        return lost("the shim told an end that makes no sense", started::yes);
    }
    if (note.text("reason") == "failed") {
        return ended(not_started(note));
    }
    std::optional<exec_exit> told = told_end(note);
    if (!told) {
        return lost("the shim told an end that makes no sense", started::unknown);
    }
    exec_exit exit = std::move(*told);
    exit.output_end = note.number("pos");
    if (exit.reason != exit_reason::exited) {
        exit.ran = ran;
    }
    if (note.text("output") == "gone") {
        exit.message =
            "the last output of the command is lost: its runner in the sandbox was killed";
    }
    return ended(std::move(exit));
}

// A program that cannot be executed ends as it would behind env(1) or a shell: 127 if it is not
// there, 126 otherwise.
exec_exit shim_link::not_started(const shim_note& note) {
    const int error = static_cast<int>(note.number("errno").value_or(0));
    const std::string why = std::generic_category().message(error);
    exec_exit exit;
    if (note.text("at") == "execve" && error == E2BIG) {
        exit.reason = exit_reason::failed;
        exit.ran = started::no;
        exit.message = "the command's arguments and environment are longer than the kernel takes; "
                       "it has not run";
        exit.error.emplace(error_name::argument_too_long, exit.message);
    } else if (note.text("at") == "execve") {
        exit.reason = exit_reason::exited;
        exit.returncode = error == ENOENT || error == ENOTDIR ? 127 : 126;
        exit.ran = started::yes;
        exit.message = "the program could not be executed: " + why;
    } else {
        exit.reason = exit_reason::failed;
        exit.ran = started::no;
        exit.message = "the sandbox could not start the command: " + why + " at " +
                       std::string(note.text("at")) + "; it has not run";
        exit.error.emplace(error_name::cloud_error, exit.message);
    }
    return exit;
}

shim_link::step shim_link::on_lost(milliseconds now, const shim_note& note) {
    const std::string_view claim = note.text("claim");
    if (claim == "claimed" && pos_ == 0 && !follow_only_ && reruns_ < 2) {
        // It died before it started anything. Its claim says so, and the next `run` takes that
        // over.
        ++reruns_;
        heard_ = false;
        heard_before_ = false;
        spoken_ = false;
        doubtful_ = false;
        return again(now, "the runner in the sandbox ended before it started the command");
    }
    runner_gone_ = (claim == "started" || claim == "exited") && note.text("boot") == "same";
    if (claim == "exited") {
        std::string how = "the command has ended";
        if (const auto code = note.number("code")) {
            how += " with code " + std::to_string(*code);
        }
        return lost(how + ", but its last output is lost: its runner in the sandbox was killed",
                    started::yes);
    }
    if (note.text("boot") == "other") {
        return lost("the sandbox was stopped and started again while the command ran",
                    started_of(note.text("started")));
    }
    return lost(claim == "none" ? "nothing in the sandbox knows of the command any more"
                                : "its runner in the sandbox is gone",
                started_of(note.text("started")));
}

// What it says of the start holds for this one call only.
shim_link::step shim_link::on_error(milliseconds now, const shim_note& note) {
    const std::string name(note.text("name"));
    if (name == "busy") {
        return crowded(now);
    }
    const bool other = name == "id_in_use"; // ours would have had the same digest
    if (heard_before_ || data_seen_ || (doubtful_ && !other)) {
        return puzzled(now, "the shim failed: " + name);
    }
    if (note.text("started") != "no" && !other) {
        return lost("the shim failed: " + name, started::unknown);
    }
    exec_exit exit;
    exit.reason = exit_reason::failed;
    exit.ran = started::no;
    if (other) {
        exit.message = "a command with the same id and other arguments was started before; this "
                       "one has not run";
        exit.error.emplace(error_name::exec_id_in_use, exit.message);
    } else {
        const auto code = static_cast<int>(std::min<std::uint64_t>(
            note.number("errno").value_or(0), std::numeric_limits<int>::max()));
        exit.message = "the sandbox could not take the command: " + name + ", " +
                       (code > 0 ? std::generic_category().message(code) : "no error number") +
                       ", at " + std::string(note.text("at")) + "; it has not run";
        const bool full = name == "claim_failed" && (code == ENOSPC || code == EDQUOT);
        exit.error = full
                         ? rpc_error(error_name::cloud_error, exit.message,
                                     "/workspace of the sandbox is full: end or wait for a command "
                                     "that runs there, then one can run that removes files")
                         : rpc_error(error_name::cloud_error, exit.message);
    }
    return ended(std::move(exit));
}

shim_link::step shim_link::lost(std::string why, started ran) {
    exec_exit exit;
    exit.reason = exit_reason::lost;
    exit.ran = data_seen_ ? started::yes : ran == started::no ? started::unknown : ran;
    exit.message = why + "; its outcome is unknown, and it was not run again";
    exit.error.emplace(error_name::outcome_unknown, exit.message);
    return ended(std::move(exit));
}

shim_link::step shim_link::ended(exec_exit exit) {
    if (!notice_.empty()) {
        exit.message = exit.message.empty() ? notice_ : notice_ + "; " + exit.message;
    }
    exit_ = std::move(exit);
    return act(action::ended);
}

} // namespace sandboxd::core
