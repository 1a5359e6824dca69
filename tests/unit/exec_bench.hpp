// A command's machine on a bench: its answers as text ("send", "wait 250", "finish"), so that
// tests read as a conversation.
#pragma once

#include "core/exec_fsm.hpp"
#include "failures.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::test {

using namespace sandboxd::core;

inline std::string text_of(const exec_fsm::steps& steps) {
    std::string text;
    for (const exec_fsm::step& each : steps) {
        text += text.empty() ? "" : " ";
        switch (each.what) {
        case exec_fsm::action::acquire:
            text += "acquire";
            break;
        case exec_fsm::action::release_bad:
            text += "release_bad";
            break;
        case exec_fsm::action::send:
            text += "send";
            break;
        case exec_fsm::action::wait:
            text += "wait-" + std::to_string(each.delay.count());
            break;
        case exec_fsm::action::read:
            text += "read";
            break;
        case exec_fsm::action::arm:
            text += "arm";
            break;
        case exec_fsm::action::kill:
            text += "kill";
            break;
        case exec_fsm::action::linger:
            text += "linger-" + std::to_string(each.delay.count());
            break;
        case exec_fsm::action::look:
            text += "look";
            break;
        case exec_fsm::action::finish:
            text += "finish";
            break;
        case exec_fsm::action::correct:
            text += "correct";
            break;
        }
    }
    return text.empty() ? "-" : text;
}

// "reason returncode started", for example "cancelled 130 no", with what else a client decides by:
// the error's name, and "unconfirmed".
inline std::string text_of(const exec_exit& exit) {
    std::string text(to_string(exit.reason));
    text += " " + (exit.returncode ? std::to_string(*exit.returncode) : std::string("null"));
    text += " " + std::string(to_string(exit.ran));
    if (exit.error) text += " " + std::string(info(exit.error->name()).text);
    if (exit.kill_unconfirmed) text += " unconfirmed";
    return text;
}

// A word of the runner.
inline exec_exit told(exit_reason reason, started ran = started::yes) {
    exec_exit exit;
    exit.reason = reason;
    exit.ran = ran;
    exit.output_end = 7;
    if (reason == exit_reason::exited) exit.returncode = 3;
    if (reason == exit_reason::timed_out) exit.returncode = timed_out_code;
    if (reason == exit_reason::cancelled) exit.returncode = cancelled_code;
    if (reason == exit_reason::lost || reason == exit_reason::failed) {
        exit.message = "a word";
        exit.error.emplace(error_name::outcome_unknown, exit.message);
    }
    return exit;
}

struct exec_bench {
    exec_fsm fsm;
    milliseconds now{0};
    milliseconds delay{0}; // of the last wait or linger

    explicit exec_bench(exec_limits limits = {}) : fsm(limits) {}

    std::string note(const exec_fsm::steps& steps) {
        for (const exec_fsm::step& each : steps) {
            if (each.delay != milliseconds(0)) delay = each.delay;
        }
        return text_of(steps);
    }
    std::string begin() { return note(fsm.begin()); }
    std::string resume() { return note(fsm.resume()); }
    std::string acquired() { return note(fsm.on_acquired()); }
    std::string not_acquired(error_name name = error_name::boot_failed) {
        return note(fsm.on_not_acquired(rpc_error(name, "no sandbox")));
    }
    std::string waited() {
        now += delay;
        return note(fsm.on_waited());
    }
    std::string sent() { return note(fsm.on_sent()); }
    std::string send_failed(cloud::failure_kind why,
                            std::optional<std::chrono::seconds> retry = {}) {
        return note(fsm.on_send_failed(now, failure_of(why, retry)));
    }
    std::string not_sent() {
        return note(fsm.on_not_sent(rpc_error(error_name::cloud_error, "no input")));
    }
    std::string output() { return note(fsm.on_output()); }
    std::string exited(int code = 0) { return note(fsm.on_exited(code)); }
    std::string refused() { return note(fsm.on_refused("too much output")); }
    std::string cut() { return note(fsm.on_cut(failure_of(cloud::failure_kind::interrupted))); }
    std::string cancel(kill_signal signal = kill_signal::kill, bool early = false) {
        return note(fsm.on_cancel(signal, early));
    }
    std::string deadline() { return note(fsm.on_deadline()); }
    std::string killed(bool confirmed = true, kill_reach reach = kill_reach::so_far) {
        return note(fsm.on_killed(confirmed, confirmed ? "" : "no answer", reach));
    }
    std::string posted() { return note(fsm.on_posted()); }
    std::string verdict(exec_exit exit) { return note(fsm.on_verdict(std::move(exit))); }
    std::string found(std::optional<exec_exit> how) { return note(fsm.on_found(std::move(how))); }
    std::string lingered() { return note(fsm.on_lingered()); }
    std::string internal_error() { return note(fsm.on_internal_error("a bug")); }
    std::string exit() const { return text_of(fsm.exit()); }

    void to_sending() {
        REQUIRE(begin() == "acquire");
        REQUIRE(acquired() == "send");
    }
    void to_running() {
        to_sending();
        REQUIRE(sent() == "arm read");
    }
    void to_waiting() { // for another try at sending
        to_sending();
        REQUIRE(send_failed(cloud::failure_kind::rate_limited) == "wait-250");
    }
    void to_ending(bool timed_out = false) {
        to_running();
        REQUIRE((timed_out ? deadline() : cancel()) == "kill");
    }
    void to_ending_unanswered() {
        to_sending();
        REQUIRE(deadline() == "kill");
    }
};

} // namespace sandboxd::test
