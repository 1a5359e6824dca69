// A command ended from outside, at each of its phases: cancel, deadline, the daemon's own end; and
// that "confirmed" is said only when no process of it can be left.
#include "exec_bench.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace sandboxd;
using namespace sandboxd::test;
using bench = exec_bench;
using kind = cloud::failure_kind;

TEST_CASE("exec, cancel: before it was sent, it has not run") {
    SUBCASE("while it waits for its sandbox") {
        bench b;
        b.begin();
        CHECK(b.cancel() == "finish");
        CHECK(b.exit() == "cancelled 130 no");
        CHECK(b.acquired() == "-"); // the sandbox comes too late
    }
    SUBCASE("while it waits to be sent again") {
        bench b;
        b.to_waiting();
        CHECK(b.cancel() == "finish");
        CHECK(b.exit() == "cancelled 130 no");
        CHECK(b.waited() == "-");
    }
    SUBCASE("while its sandbox is brought up again") {
        bench b;
        b.to_sending();
        REQUIRE(b.send_failed(kind::conflict) == "release_bad");
        CHECK(b.cancel() == "finish");
        CHECK(b.exit() == "cancelled 130 no");
    }
}

TEST_CASE("exec, cancel: while it is being sent, the answer is waited for, not long") {
    bench b;
    b.to_sending();
    REQUIRE(b.cancel(kill_signal::terminate) == "linger-2000");
    CHECK(b.fsm.signal() == kill_signal::terminate);
    CHECK(b.cancel(kill_signal::terminate) == "-");

    SUBCASE("it is accepted: read and end it") {
        CHECK(b.sent() == "arm read kill");
        CHECK(b.fsm.ending());
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "cancelled 130 yes");
    }
    SUBCASE("it is certainly refused, whatever for: it has not run, and is not sent again") {
        for (const kind why : {kind::unreachable, kind::unauthorized, kind::forbidden,
                               kind::not_found, kind::conflict, kind::too_large, kind::bad_request,
                               kind::cap_reached, kind::rate_limited}) {
            bench c;
            c.to_sending();
            REQUIRE(c.cancel() == "linger-2000");
            CHECK(c.send_failed(why) == "finish");
            CHECK(c.exit() == "cancelled 130 no");
        }
    }
    SUBCASE("it may have run: it is ended anyway") {
        for (const kind why : {kind::interrupted, kind::not_found_unproven, kind::no_capacity,
                               kind::server_error, kind::bad_answer}) {
            bench c;
            c.to_sending();
            REQUIRE(c.cancel() == "linger-2000");
            CHECK(c.send_failed(why) == "kill");
            CHECK(c.killed() == "linger-500");
            CHECK(c.lingered() == "finish");
            CHECK(c.exit() == "cancelled 130 unknown unconfirmed");
            CHECK_FALSE(c.fsm.exit().message.empty());
        }
    }
    SUBCASE("its input was not put in place") {
        CHECK(b.not_sent() == "finish");
        CHECK(b.exit() == "cancelled 130 no");
    }
    SUBCASE("no answer comes in time") {
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "cancelled 130 unknown unconfirmed");
    }
    SUBCASE("its time is up meanwhile") {
        CHECK(b.deadline() == "kill");
        CHECK(b.fsm.signal() == kill_signal::kill);
        CHECK(b.lingered() == "-"); // the wait for the answer is over
        CHECK(b.send_failed(kind::conflict) == "finish");
        CHECK(b.exit() == "timed_out 124 no");
    }
}

TEST_CASE("exec, cancel: while it runs") {
    bench b;
    b.to_running();
    b.output();
    REQUIRE(b.cancel(kill_signal::interrupt) == "kill");
    CHECK(b.fsm.signal() == kill_signal::interrupt);
    CHECK(b.output() == "-"); // what it says while it ends still counts

    SUBCASE("confirmed, then the stream ends") {
        CHECK(b.killed() == "linger-500");
        CHECK(b.exited(2) == "finish");
        CHECK(b.exit() == "cancelled 130 yes");
        CHECK(b.fsm.exit().message.empty());
    }
    SUBCASE(
        "confirmed, and the stream stays open: perhaps it was only just starting, so once more") {
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "cancelled 130 yes");
    }
    SUBCASE("confirmed, then the stream breaks off or ends in an error") {
        CHECK(b.killed() == "linger-500");
        CHECK((b.fsm.exit().error ? b.cut() : b.refused()) == "finish");
        CHECK(b.exit() == "cancelled 130 yes");
    }
    SUBCASE("not confirmed") {
        CHECK(b.killed(false) == "finish");
        CHECK(b.exit() == "cancelled 130 yes unconfirmed");
        CHECK(b.fsm.exit().message.find("no answer") != std::string::npos);
    }
    SUBCASE("its time is up meanwhile: it stays cancelled") {
        CHECK(b.deadline() == "-");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "cancelled 130 yes");
    }
}

// A main process that has ended is not a tree that has ended: children may ignore the signal, and
// finishing would stop the very command that is about to kill them.
TEST_CASE("exec, cancel: the stream's end does not confirm that the tree is gone") {
    for (const int how : {0, 1, 2}) {
        CAPTURE(how);
        const auto end_stream = [how](bench& b) {
            return how == 0 ? b.exited(1) : how == 1 ? b.refused() : b.cut();
        };
        {
            bench b;
            b.to_ending();
            CHECK(end_stream(b) == "-");
            CHECK(b.killed() == "finish"); // nothing more can come
            CHECK(b.exit() == "cancelled 130 yes");
        }
        {
            bench b;
            b.to_ending(true);
            CHECK(end_stream(b) == "-");
            CHECK(b.killed(false) == "finish");
            CHECK(b.exit() == "timed_out 124 yes unconfirmed");
        }
    }
}

TEST_CASE("exec, cancel: a second one counts only if it is sharper") {
    const kill_signal all[] = {kill_signal::interrupt, kill_signal::terminate, kill_signal::kill};
    for (const kill_signal first : all) {
        for (const kill_signal second : all) {
            CAPTURE(static_cast<int>(first));
            CAPTURE(static_cast<int>(second));
            const bool sharper = second > first;
            bench running;
            running.to_running();
            REQUIRE(running.cancel(first) == "kill");
            CHECK(running.cancel(second) == (sharper ? "kill" : "-"));
            CHECK(running.fsm.signal() == std::max(first, second));

            bench sending;
            sending.to_sending();
            REQUIRE(sending.cancel(first) == "linger-2000");
            CHECK(sending.cancel(second) == "-");
            CHECK(sending.fsm.signal() == std::max(first, second));
            CHECK(sending.sent() == "arm read kill");
        }
    }
}

TEST_CASE("exec, deadline: at each phase") {
    SUBCASE("waiting for the sandbox does not count") {
        bench b;
        b.begin();
        CHECK(b.deadline() == "-");
        CHECK(b.acquired() == "send");
    }
    SUBCASE("nor does waiting to send again") {
        bench b;
        b.to_waiting();
        CHECK(b.deadline() == "-");
        CHECK(b.waited() == "send");
    }
    SUBCASE("running") {
        bench b;
        b.to_running();
        CHECK(b.deadline() == "kill");
        CHECK(b.fsm.signal() == kill_signal::kill);
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "timed_out 124 yes");
    }
    SUBCASE("running, and it cannot be ended") {
        bench b;
        b.to_running();
        REQUIRE(b.deadline() == "kill");
        CHECK(b.killed(false) == "finish");
        CHECK(b.exit() == "timed_out 124 yes unconfirmed");
    }
    SUBCASE("ending: once is enough") {
        bench b;
        b.to_ending(true);
        CHECK(b.deadline() == "-");
        CHECK(b.cancel() == "-"); // nor does a cancel make another reason of it
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "timed_out 124 yes");
    }
    SUBCASE("sent and not answered") {
        bench b;
        b.to_ending_unanswered();
        SUBCASE("refused after all: it has not run") {
            CHECK(b.send_failed(kind::rate_limited) == "finish");
            CHECK(b.exit() == "timed_out 124 no");
        }
        SUBCASE("its input was not put in place") {
            CHECK(b.not_sent() == "finish");
            CHECK(b.exit() == "timed_out 124 no");
        }
        SUBCASE("an answer that leaves it open") {
            CHECK(b.send_failed(kind::server_error) == "-"); // the kill goes on
            CHECK(b.killed() == "linger-500");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "timed_out 124 unknown unconfirmed");
        }
        SUBCASE("no answer at all") {
            CHECK(b.killed(false) == "finish");
            CHECK(b.exit() == "timed_out 124 unknown unconfirmed");
        }
    }
}

// The kill may have looked before the command's processes were there.
TEST_CASE("exec, ending: a command accepted after the kill was sent is killed again, and only that "
          "confirms") {
    SUBCASE("the first kill has not ended yet") {
        bench b;
        b.to_ending_unanswered();
        CHECK(b.sent() == "read kill");
        CHECK(b.killed() == "-"); // the first: it says nothing about what started after it
        CHECK(b.lingered() == "-");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "timed_out 124 yes");
    }
    SUBCASE("the first kill has been confirmed") {
        bench b;
        b.to_ending_unanswered();
        REQUIRE(b.killed() == "linger-500");
        CHECK(b.sent() == "read kill");
        CHECK(b.lingered() == "-"); // the pause after the first
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "timed_out 124 yes");
    }
    SUBCASE("the second is not confirmed") {
        bench b;
        b.to_ending_unanswered();
        REQUIRE(b.sent() == "read kill");
        CHECK(b.killed() == "-");
        CHECK(b.killed(false) == "finish");
        CHECK(b.exit() == "timed_out 124 yes unconfirmed");
    }
    SUBCASE("the first is not confirmed, the second is") {
        bench b;
        b.to_ending_unanswered();
        REQUIRE(b.sent() == "read kill");
        CHECK(b.killed(false) == "-");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "kill");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "timed_out 124 yes");
    }
    SUBCASE("its stream ends between the two") {
        bench b;
        b.to_ending_unanswered();
        REQUIRE(b.sent() == "read kill");
        CHECK(b.exited() == "-");
        CHECK(b.killed() == "-");
        CHECK(b.killed() == "finish");
    }
}

TEST_CASE("exec, ending: a kill that holds for what starts late is not repeated") {
    bench b;
    b.to_sending();
    REQUIRE(b.cancel(kill_signal::interrupt, true) == "kill");
    SUBCASE("as it had run, its runner is asked how far") {
        REQUIRE(b.killed(true, kill_reach::for_good) == "look");
        SUBCASE("its start is answered meanwhile") {
            CHECK(b.sent() == "read linger-2000");
            CHECK(b.lingered() == "-");
            CHECK(b.found(std::nullopt) == "linger-2000");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "cancelled 130 yes");
        }
        SUBCASE("it tells") {
            CHECK(b.found(told(exit_reason::cancelled)) == "linger-2000");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "cancelled 130 yes");
        }
        SUBCASE("it has printed something, and does not tell") {
            CHECK(b.output() == "-");
            CHECK(b.found(std::nullopt) == "linger-2000");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "cancelled 130 yes");
        }
        SUBCASE("it cannot be asked") {
            CHECK(b.found(std::nullopt) == "linger-2000");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "cancelled 130 unknown");
        }
        SUBCASE("all of it comes before the answer to that") {
            CHECK(b.output() == "-");
            CHECK(b.verdict(told(exit_reason::cancelled)) == "finish");
            CHECK(b.exit() == "cancelled 130 yes");
        }
    }
    SUBCASE("nothing of it was found, though it had been heard of") {
        REQUIRE(b.sent() == "read kill");
        CHECK(b.killed(true, kill_reach::before_start) == "linger-500");
        SUBCASE("nor did it print anything") {
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "cancelled 130 unknown");
        }
        SUBCASE("it has printed something") {
            CHECK(b.output() == "-");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "cancelled 130 yes");
        }
    }
    SUBCASE("with its sandbox there is nobody to ask") {
        CHECK(b.killed(true, kill_reach::with_sandbox) == "linger-500");
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "cancelled 130 unknown");
    }
}

TEST_CASE("exec, ending: of several kills the one that holds for good settles it") {
    bench b;
    b.to_running();
    REQUIRE(b.cancel(kill_signal::interrupt) == "kill");
    REQUIRE(b.cancel(kill_signal::kill) == "kill");
    SUBCASE("while the other is under way") {
        CHECK(b.killed(true, kill_reach::for_good) == "linger-500");
        SUBCASE("and fails") {
            CHECK(b.killed(false) == "-");
        }
        SUBCASE("and comes too late") {
            CHECK(b.killed(true, kill_reach::after_end) == "-");
        }
        SUBCASE("and does not end") {}
        CHECK(b.lingered() == "finish");
        CHECK(b.exit() == "cancelled 130 yes");
    }
    SUBCASE("not one that fails while the other is under way") {
        CHECK(b.killed(false) == "-");
        CHECK(b.killed(true, kill_reach::for_good) == "linger-500");
    }
    SUBCASE("nor one that has seen less than the other may") {
        CHECK(b.killed(true, kill_reach::so_far) == "-");
        CHECK(b.killed(false) == "finish");
        CHECK(b.exit() == "cancelled 130 yes unconfirmed");
    }
}

TEST_CASE("exec, ending: a sharper kill that fails takes nothing back") {
    bench b;
    b.to_running();
    REQUIRE(b.cancel(kill_signal::interrupt) == "kill");
    REQUIRE(b.killed(true, kill_reach::for_good) == "linger-500");
    REQUIRE(b.cancel(kill_signal::kill) == "kill");
    CHECK(b.lingered() == "-"); // it may have more to say
    CHECK(b.killed(false) == "linger-500");
    CHECK(b.lingered() == "finish");
    CHECK(b.exit() == "cancelled 130 yes");
}

TEST_CASE("exec, ending: a failure inside the daemon never hangs a command") {
    SUBCASE("acquiring") {
        bench b;
        b.begin();
        CHECK(b.internal_error() == "finish");
        CHECK(b.exit() == "failed null no internal_error");
    }
    SUBCASE("sending") {
        bench b;
        b.to_sending();
        CHECK(b.internal_error() == "finish");
        CHECK(b.exit() == "lost null unknown internal_error unconfirmed");
    }
    SUBCASE("running") {
        bench b;
        b.to_running();
        CHECK(b.internal_error() == "finish");
        CHECK(b.exit() == "lost null yes internal_error unconfirmed");
    }
    SUBCASE("ending: whoever cancelled is not told that it worked") {
        bench b;
        b.to_ending();
        CHECK(b.internal_error() == "finish");
        CHECK(b.exit() == "lost null yes internal_error unconfirmed");
    }
}

TEST_CASE("exec, resumed: looked for where it was sent to, never sent again") {
    SUBCASE("it is there") {
        bench b;
        CHECK(b.resume() == "arm acquire");
        CHECK(b.acquired() == "send"); // its clock runs already
        CHECK(b.sent() == "read");
        CHECK(b.exited(3) == "finish");
        CHECK(b.exit() == "exited 3 yes");
    }
    SUBCASE("its sandbox is not") {
        bench b;
        b.resume();
        CHECK(b.not_acquired() == "finish");
        CHECK(b.exit() == "lost null unknown outcome_unknown unconfirmed");
    }
    SUBCASE("what it would take to look for it cannot be had") {
        bench b;
        b.resume();
        b.acquired();
        CHECK(b.not_sent() == "finish");
        CHECK(b.exit() == "lost null unknown outcome_unknown unconfirmed");
    }
    SUBCASE("cancelled before its sandbox was found: it may run, so it is killed") {
        bench b;
        b.resume();
        CHECK(b.cancel() == "kill");
        CHECK(b.acquired() == "-");
        CHECK(b.killed() == "linger-500");
        CHECK(b.lingered() == "finish");
    }
    SUBCASE("its time is up before its sandbox was found") {
        bench b;
        b.resume();
        CHECK(b.deadline() == "kill");
        CHECK(b.killed(false) == "finish");
        CHECK(b.exit() == "timed_out 124 unknown unconfirmed");
    }
    SUBCASE("the daemon fails while it waits") {
        bench b;
        b.resume();
        CHECK(b.internal_error() == "finish");
        CHECK(b.exit() == "lost null unknown outcome_unknown unconfirmed");
    }
}

TEST_CASE("exec: where a kill reaches what was only just sent, a cancel does not wait") {
    bench b;
    b.to_sending();
    CHECK(text_of(b.fsm.on_cancel(kill_signal::kill, true)) == "kill");
    CHECK(text_of(b.fsm.on_killed(true, "", kill_reach::before_start)) == "finish");
    CHECK(b.exit() == "cancelled 130 no");
}

TEST_CASE("exec: a kill that reaches into the future needs no second one, nor a warning") {
    for (const kill_reach reach : {kill_reach::so_far, kill_reach::for_good,
                                   kill_reach::before_start, kill_reach::with_sandbox}) {
        CAPTURE(static_cast<int>(reach));
        exec_fsm unanswered;
        unanswered.begin();
        unanswered.on_acquired();
        unanswered.on_cancel(kill_signal::kill);
        CHECK(text_of(unanswered.on_lingered()) == "kill");
        const std::string next = text_of(unanswered.on_killed(true, "", reach));
        CHECK(next == (reach == kill_reach::before_start ? "finish"
                       : reach == kill_reach::for_good   ? "look" // it had started
                                                         : "linger-500"));
        unanswered.on_found(std::nullopt);
        if (!unanswered.done()) {
            CHECK(text_of(unanswered.on_lingered()) == "finish");
        }
        CHECK(unanswered.exit().kill_unconfirmed == (reach == kill_reach::so_far));
        CHECK(unanswered.exit().ran ==
              (reach == kill_reach::before_start ? started::no : started::unknown));

        exec_fsm answered;
        answered.begin();
        answered.on_acquired();
        answered.on_sent();
        CHECK(text_of(answered.on_cancel(kill_signal::kill)) == "kill");
        CHECK(text_of(answered.on_killed(true, "", reach)) == "linger-500");
        CHECK(text_of(answered.on_lingered()) == (reach == kill_reach::so_far ? "kill" : "finish"));
    }
}

TEST_CASE("exec, ending: what its runner says goes first") {
    using why = exit_reason;
    SUBCASE("it ended by itself before it was cancelled: its code, once nothing of it is left") {
        bench b;
        b.to_ending();
        CHECK(b.verdict(told(why::exited)) == "-"); // a child of it may live
        CHECK(b.killed() == "finish");
        CHECK(b.exit() == "exited 3 yes");
        CHECK(b.fsm.exit().output_end == 7);
        CHECK(b.fsm.certain());
    }
    SUBCASE("the answers cross") {
        bench b;
        b.to_ending();
        CHECK(b.killed() == "linger-500");
        CHECK(b.verdict(told(why::exited)) == "finish");
        CHECK(b.exit() == "exited 3 yes");
    }
    SUBCASE("its time was up before it was cancelled") {
        bench b;
        b.to_ending();
        CHECK(b.verdict(told(why::timed_out)) == "-");
        CHECK(b.killed() == "finish");
        CHECK(b.exit() == "timed_out 124 yes");
    }
    SUBCASE("it could not be started") {
        bench b;
        b.to_ending();
        CHECK(b.verdict(told(why::failed, started::no)) == "-");
        CHECK(b.killed() == "finish");
        CHECK(b.exit() == "failed null no outcome_unknown");
    }
    SUBCASE("it was cancelled before it started") {
        bench b;
        b.to_ending();
        CHECK(b.verdict(told(why::cancelled, started::no)) == "-");
        CHECK(b.killed() == "finish");
        CHECK(b.exit() == "cancelled 130 no");
    }
    SUBCASE("our clock was late: nothing has to be ended any more") {
        for (const why reason : {why::exited, why::timed_out, why::failed}) {
            bench b;
            b.to_ending(true);
            CHECK(b.verdict(told(reason)) == "finish");
            CHECK(b.fsm.exit().reason == reason);
            CHECK(b.killed() == "-");
        }
    }
    SUBCASE("it was killed: by whom the runner does not know") {
        for (const bool timed_out : {false, true}) {
            bench b;
            b.to_ending(timed_out);
            CHECK(b.verdict(told(why::cancelled)) == "-");
            CHECK(b.killed() == "finish");
            CHECK(b.exit() == (timed_out ? "timed_out 124 yes" : "cancelled 130 yes"));
            CHECK(b.fsm.exit().output_end == 7);
        }
    }
    SUBCASE("it ended by itself, and what it left behind cannot be reached") {
        bench b;
        b.to_ending();
        CHECK(b.verdict(told(why::exited)) == "-");
        CHECK(b.killed(false) == "finish");
        CHECK(b.exit() == "exited 3 yes unconfirmed");
        CHECK(b.fsm.exit().message.find("no answer") != std::string::npos);
    }
    SUBCASE("it does not know") {
        bench b;
        b.to_ending();
        CHECK(b.verdict(told(why::lost)) == "-");
        CHECK(b.killed() == "finish");
        CHECK(b.exit() == "cancelled 130 yes");
    }
}

TEST_CASE("exec, ending: it had ended before the kill, so how is asked") {
    using why = exit_reason;
    for (const bool timed_out : {false, true}) {
        CAPTURE(timed_out);
        bench b;
        b.to_ending(timed_out);
        REQUIRE(b.killed(true, kill_reach::after_end) == "look");
        CHECK(b.lingered() == "-");
        SUBCASE("by itself: told at once, the rest of its output is read behind that") {
            CHECK(b.found(told(why::exited)) == "finish");
            CHECK(b.exit() == "exited 3 yes");
            CHECK_FALSE(b.fsm.certain()); // where its output ends
            exec_exit end = told(why::exited);
            end.output_end = 9;
            CHECK(b.verdict(end) == "correct");
            CHECK(b.fsm.certain());
            CHECK(b.fsm.exit().output_end == 9);
            CHECK(b.verdict(told(why::exited)) == "-");
        }
        SUBCASE("by itself, and its runner dies over its output") {
            CHECK(b.found(told(why::exited)) == "finish");
            CHECK(b.verdict(told(why::lost)) == "correct");
            CHECK(b.exit() == "exited 3 yes");
            CHECK_FALSE(b.fsm.exit().message.empty());
        }
        SUBCASE("by its time: its last output is waited for") {
            CHECK(b.found(told(why::timed_out)) == "linger-2000");
            SUBCASE("it comes") {
                CHECK(b.verdict(told(why::timed_out)) == "finish");
            }
            SUBCASE("it does not") {
                CHECK(b.lingered() == "finish");
            }
            CHECK(b.exit() == "timed_out 124 yes");
        }
        SUBCASE("by an earlier kill") {
            CHECK(b.found(told(why::cancelled)) == "linger-2000");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == (timed_out ? "timed_out 124 yes" : "cancelled 130 yes"));
        }
        SUBCASE("nobody can say, until its own line does") {
            CHECK(b.found(std::nullopt) == "linger-2000");
            CHECK(b.verdict(told(why::exited)) == "finish");
            CHECK(b.exit() == "exited 3 yes");
        }
        SUBCASE("nobody can say: then neither do we") {
            CHECK(b.found(std::nullopt) == "linger-2000");
            CHECK(b.lingered() == "finish");
            CHECK(b.exit() == "lost null yes outcome_unknown unconfirmed");
        }
        SUBCASE("its own line says so first") {
            CHECK(b.verdict(told(why::exited)) == "finish");
            CHECK(b.exit() == "exited 3 yes");
            CHECK(b.found(told(why::cancelled)) == "-");
        }
        SUBCASE("its line has broken off for good") {
            CHECK(b.verdict(told(why::lost)) == "-");
            CHECK(b.found(std::nullopt) == "finish");
            CHECK(b.exit() == "lost null yes outcome_unknown unconfirmed");
        }
    }
    SUBCASE("a sharper kill is under way when the answer comes") {
        bench b;
        b.to_running();
        REQUIRE(b.cancel(kill_signal::interrupt) == "kill");
        REQUIRE(b.killed(true, kill_reach::after_end) == "look");
        REQUIRE(b.cancel(kill_signal::kill) == "kill");
        CHECK(b.found(told(why::exited)) == "-");
        CHECK(b.killed(true, kill_reach::after_end) == "finish");
        CHECK(b.exit() == "exited 3 yes");
    }
    SUBCASE("nothing had been heard of it yet") {
        bench b;
        b.to_ending_unanswered();
        REQUIRE(b.killed(true, kill_reach::after_end) == "look");
        CHECK(b.found(told(why::timed_out)) == "linger-2000");
        CHECK(b.sent() == "-"); // it is read on another line by now
        CHECK(b.verdict(told(why::timed_out)) == "finish");
        CHECK(b.exit() == "timed_out 124 yes");
    }
}

TEST_CASE("exec, ended in doubt: what is heard later puts it right") {
    using why = exit_reason;
    const auto in_doubt = [](bench& b, bool timed_out) {
        b.to_ending(timed_out);
        REQUIRE(b.killed(false) == "finish");
        REQUIRE_FALSE(b.fsm.certain());
    };
    SUBCASE("it had ended by itself") {
        bench b;
        in_doubt(b, true);
        CHECK(b.verdict(told(why::exited)) == "correct");
        CHECK(b.exit() == "exited 3 yes");
        CHECK(b.fsm.certain());
        CHECK(b.verdict(told(why::timed_out)) == "-");
    }
    SUBCASE("the kill had reached it") {
        for (const bool timed_out : {false, true}) {
            bench b;
            in_doubt(b, timed_out);
            CHECK(b.verdict(told(why::cancelled)) == "correct");
            CHECK(b.exit() == (timed_out ? "timed_out 124 yes" : "cancelled 130 yes"));
        }
    }
    SUBCASE("it was lost, and is found") {
        bench b;
        b.to_running();
        REQUIRE(b.verdict(told(why::lost)) == "finish");
        CHECK(b.verdict(told(why::lost)) == "-");
        CHECK(b.verdict(told(why::exited)) == "correct");
        CHECK(b.exit() == "exited 3 yes");
    }
    SUBCASE("it is ended later") {
        bench b;
        in_doubt(b, false);
        CHECK(text_of(b.fsm.on_late_kill()) == "correct");
        CHECK(b.exit() == "cancelled 130 yes");
        CHECK(text_of(b.fsm.on_late_kill()) == "-");
    }
    SUBCASE("what is certain stays") {
        bench b;
        b.to_running();
        REQUIRE(b.exited(5) == "finish");
        CHECK(b.verdict(told(why::exited)) == "-");
        CHECK(text_of(b.fsm.on_late_kill()) == "-");
        CHECK(b.exit() == "exited 5 yes");
    }
}

TEST_CASE("exec, deadline: the command's time begins when it is known to have started") {
    const auto delay_of = [](const exec_fsm::steps& steps) {
        REQUIRE(steps.size() >= 1);
        REQUIRE(steps.front().what == exec_fsm::action::arm);
        return steps.front().delay;
    };
    bench b;
    CHECK(b.posted() == "-");
    b.to_sending(); // what goes before it takes no time of it
    CHECK(delay_of(b.fsm.on_posted()) == milliseconds(1'500));
    CHECK(delay_of(b.fsm.on_posted()) == milliseconds(1'500)); // tried again: anew
    CHECK(delay_of(b.fsm.on_sent()) == milliseconds(0));
    CHECK(b.posted() == "-");

    bench again; // of the next daemon the clock runs all along
    CHECK(again.resume() == "arm acquire");
    CHECK(again.acquired() == "send");
    CHECK(again.posted() == "-");
    CHECK(again.sent() == "read");
}

TEST_CASE("exec, ending: for how long the sandbox is tried to be reached") {
    bench cancelled;
    cancelled.to_ending();
    CHECK(cancelled.fsm.kill_patience() == milliseconds(3'000)); // somebody waits for the answer
    bench timed_out;
    timed_out.to_ending(true);
    CHECK(timed_out.fsm.kill_patience() == milliseconds(10'000));
}
