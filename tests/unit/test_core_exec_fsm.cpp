// The life of a command up to its exit: acquiring, sending, running. How it is ended from outside
// is in test_core_exec_ending.cpp.
#include "exec_bench.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

using namespace sandboxd;
using namespace sandboxd::test;
using bench = exec_bench;
using kind = cloud::failure_kind;

TEST_CASE("exec: a command that just runs") {
    bench b;
    CHECK(b.begin() == "acquire");
    CHECK(b.fsm.acquiring());
    CHECK(b.acquired() == "send");
    CHECK(b.fsm.sending());
    CHECK(b.sent() == "arm read");
    CHECK(b.fsm.running());
    CHECK(b.output() == "-");
    CHECK(b.exited(3) == "finish");
    CHECK(b.fsm.done());
    CHECK(b.exit() == "exited 3 yes");
    CHECK(b.fsm.exit().message.empty());
}

TEST_CASE("exec: no sandbox, no command") {
    for (const error_name name : {error_name::boot_failed, error_name::unauthorized,
                                  error_name::account_mismatch, error_name::outcome_unknown}) {
        bench b;
        REQUIRE(b.begin() == "acquire");
        CHECK(b.not_acquired(name) == "finish");
        CHECK(b.exit() == "failed null no " + std::string(info(name).text));
        CHECK(b.fsm.exit().message.find("has not run") != std::string::npos);
    }
}

// The one promise: sent again only when it certainly has not run.
TEST_CASE("exec: how sending can fail") {
    const std::map<std::string_view, std::pair<std::string, std::string>> expected{
        {"unreachable", {"wait-250", ""}},
        {"interrupted", {"finish", "lost null unknown outcome_unknown unconfirmed"}},
        {"unauthorized", {"finish", "failed null no unauthorized"}},
        {"forbidden", {"finish", "failed null no unauthorized"}},
        {"not_found", {"release_bad", ""}},
        {"not_found_unproven", {"finish", "lost null unknown outcome_unknown unconfirmed"}},
        {"conflict", {"release_bad", ""}},
        {"too_large", {"finish", "failed null no too_large"}},
        {"bad_request", {"finish", "failed null no cloud_error"}},
        {"cap_reached", {"wait-250", ""}},
        {"rate_limited", {"wait-250", ""}},
        {"no_capacity", {"finish", "lost null unknown outcome_unknown unconfirmed"}},
        {"server_error", {"finish", "lost null unknown outcome_unknown unconfirmed"}},
        {"bad_answer", {"finish", "lost null unknown outcome_unknown unconfirmed"}}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b;
        b.to_sending();
        const auto& [answer, exit] = expected.at(each.name);
        CHECK(b.send_failed(each.kind) == answer);
        if (answer == "finish") {
            CHECK(b.exit() == exit);
            CHECK_FALSE(b.fsm.exit().message.empty());
        } else if (answer == "release_bad") {
            CHECK(b.fsm.acquiring());
            CHECK(b.acquired() == "send");
        } else {
            CHECK(b.fsm.sending());
            CHECK(b.waited() == "send"); // waiting is not running
        }
    }
}

TEST_CASE("exec: an exec on a stopped or vanished sandbox is sent again, three times") {
    for (const kind why : {kind::conflict, kind::not_found}) {
        bench b;
        b.to_sending();
        for (int i = 0; i < 3; ++i) {
            CHECK(b.send_failed(why) == "release_bad");
            CHECK(b.acquired() == "send");
        }
        CHECK(b.send_failed(why) == "finish");
        CHECK(b.exit() == "failed null no cloud_error"); // it was found running each time: not gone
    }
}

TEST_CASE("exec: the new sandbox may not come either") {
    bench b;
    b.to_sending();
    REQUIRE(b.send_failed(kind::conflict) == "release_bad");
    CHECK(b.not_acquired() == "finish");
    CHECK(b.exit() == "failed null no boot_failed");
}

TEST_CASE("exec: 429 is waited out for five minutes, ever more rarely") {
    for (const kind why : {kind::rate_limited, kind::cap_reached}) {
        bench b;
        b.to_sending();
        for (const char* expected : {"wait-250", "wait-500", "wait-1000", "wait-2000", "wait-4000",
                                     "wait-5000", "wait-5000"}) {
            CHECK(b.send_failed(why) == expected);
            CHECK(b.waited() == "send");
        }
        b.now = milliseconds(299'999);
        CHECK(b.send_failed(why) == "wait-1"); // not beyond them
        CHECK(b.waited() == "send");
        CHECK(b.send_failed(why) == "finish");
        CHECK(b.exit() == (why == kind::rate_limited ? "failed null no rate_limited"
                                                     : "failed null no cap_reached"));
    }
}

TEST_CASE("exec: Retry-After is honoured, and never shortens the pause") {
    bench b;
    b.to_sending();
    CHECK(b.send_failed(kind::rate_limited, std::chrono::seconds(2)) == "wait-2000");
    CHECK(b.waited() == "send");
    CHECK(b.send_failed(kind::rate_limited, std::chrono::seconds(0)) == "wait-500");
    CHECK(b.waited() == "send");
    CHECK(b.sent() == "arm read");
}

TEST_CASE("exec: no Retry-After makes anybody wait longer than was promised") {
    exec_limits limits;
    limits.refused = milliseconds(1'000);
    for (const auto retry : {std::chrono::seconds(12), std::chrono::seconds(86'400)}) {
        bench b(limits);
        b.to_sending();
        CHECK(b.send_failed(kind::rate_limited, retry) == "wait-1000");
        CHECK(b.waited() == "send"); // held back before it goes out, as the platform asked for
        CHECK(b.send_failed(kind::rate_limited, retry) == "finish");
        CHECK(b.exit() == "failed null no rate_limited");
    }
    bench b(limits);
    b.to_sending();
    REQUIRE(b.send_failed(kind::rate_limited) == "wait-250");
    REQUIRE(b.waited() == "send");
    CHECK(b.send_failed(kind::rate_limited, std::chrono::seconds(12)) == "wait-750");
}

TEST_CASE("exec: a platform out of reach is tried for half a minute") {
    bench b;
    b.to_sending();
    std::string answer = b.send_failed(kind::unreachable);
    while (answer != "finish") {
        REQUIRE(b.waited() == "send");
        answer = b.send_failed(kind::unreachable);
    }
    CHECK(b.now >= milliseconds(30'000));
    CHECK(b.now <= milliseconds(36'000));
    CHECK(b.exit() == "failed null no cloud_unreachable");
}

TEST_CASE("exec: only failures to connect in a row count as out of reach") {
    bench b;
    b.to_sending();
    REQUIRE(b.send_failed(kind::rate_limited) == "wait-250");
    b.now += milliseconds(100'000);
    REQUIRE(b.fsm.on_waited().size() == 1);
    CHECK(b.send_failed(kind::unreachable) == "wait-500"); // the first of its row
    b.now += milliseconds(29'000);
    REQUIRE(b.fsm.on_waited().size() == 1);
    CHECK(b.send_failed(kind::rate_limited) == "wait-1000"); // an answer: it was reached
    b.now += milliseconds(29'000);
    REQUIRE(b.fsm.on_waited().size() == 1);
    CHECK(b.send_failed(kind::unreachable) == "wait-2000");
    b.now += milliseconds(145'000);
    REQUIRE(b.fsm.on_waited().size() == 1);
    CHECK(b.send_failed(kind::rate_limited) == "finish"); // five minutes after the first
}

TEST_CASE("exec: bringing a sandbox up anew is no part of a row of failures") {
    bench b;
    b.to_sending();
    REQUIRE(b.send_failed(kind::unreachable) == "wait-250");
    REQUIRE(b.waited() == "send");
    REQUIRE(b.send_failed(kind::conflict) == "release_bad");
    b.now += milliseconds(120'000);
    REQUIRE(b.acquired() == "send");
    CHECK(b.send_failed(kind::unreachable) == "wait-500");
}

TEST_CASE("exec: input that could not be put in place means that it has not run") {
    bench b;
    b.to_sending();
    CHECK(b.not_sent() == "finish");
    CHECK(b.exit() == "failed null no cloud_error");
}

TEST_CASE("exec: a stream that breaks off says nothing of the outcome") {
    SUBCASE("before any output") {
        bench b;
        b.to_running();
        CHECK(b.cut() == "finish");
        CHECK(b.exit() == "lost null unknown outcome_unknown unconfirmed");
    }
    SUBCASE("after some") {
        bench b;
        b.to_running();
        b.output();
        CHECK(b.cut() == "finish");
        CHECK(b.exit() == "lost null yes outcome_unknown unconfirmed");
        CHECK(b.fsm.exit().message.find("not run again") != std::string::npos);
    }
}

TEST_CASE("exec: the platform ends the command with an error line") {
    SUBCASE("before any output") {
        bench b;
        b.to_running();
        CHECK(b.refused() == "finish");
        CHECK(b.exit() == "failed null unknown outcome_unknown");
    }
    SUBCASE("after some") {
        bench b;
        b.to_running();
        b.output();
        CHECK(b.refused() == "finish");
        CHECK(b.exit() == "failed null yes outcome_unknown");
    }
    SUBCASE("and its words reach people") {
        bench b;
        b.to_running();
        b.refused();
        CHECK(b.fsm.exit().message.find("too much output") != std::string::npos);
    }
}

TEST_CASE("exec: an error never invites to run again what may have run") {
    // protocol/methods/exec.exit.json: retryable only with started "no".
    const auto check = [](const bench& b) {
        REQUIRE(b.fsm.done());
        const exec_exit& exit = b.fsm.exit();
        CHECK((exit.ran == started::no || !exit.error || !exit.error->retryable()));
    };
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b;
        b.to_sending();
        if (b.send_failed(each.kind) == "finish") check(b);
    }
    for (const bool output : {false, true}) {
        for (const int how : {0, 1, 2}) {
            bench b;
            b.to_running();
            if (output) b.output();
            how == 0 ? b.cut() : how == 1 ? b.refused() : b.internal_error();
            check(b);
        }
    }
}

TEST_CASE("exec: what comes at the wrong time changes nothing") {
    SUBCASE("while acquiring") {
        bench b;
        b.begin();
        for (const std::string& answer :
             {b.waited(), b.sent(), b.send_failed(kind::conflict), b.not_sent(), b.output(),
              b.exited(), b.refused(), b.cut(), b.deadline(), b.killed(), b.lingered()}) {
            CHECK(answer == "-");
        }
        CHECK(b.fsm.acquiring());
        CHECK(b.acquired() == "send");
    }
    SUBCASE("while sending") {
        bench b;
        b.to_sending();
        for (const std::string& answer : {b.acquired(), b.not_acquired(), b.waited(), b.exited(),
                                          b.refused(), b.cut(), b.killed(), b.lingered()}) {
            CHECK(answer == "-");
        }
        CHECK(b.sent() == "arm read");
    }
    SUBCASE("while waiting to send again") {
        bench b;
        b.to_waiting();
        for (const std::string& answer : {b.acquired(), b.not_acquired(), b.exited(), b.refused(),
                                          b.cut(), b.deadline(), b.killed(), b.lingered()}) {
            CHECK(answer == "-");
        }
        CHECK(b.waited() == "send");
    }
    SUBCASE("while running") {
        bench b;
        b.to_running();
        for (const std::string& answer :
             {b.acquired(), b.not_acquired(), b.waited(), b.sent(),
              b.send_failed(kind::unreachable), b.not_sent(), b.killed(), b.lingered()}) {
            CHECK(answer == "-");
        }
        CHECK(b.exited() == "finish");
    }
    SUBCASE("when it is done") {
        bench b;
        b.to_running();
        REQUIRE(b.exited(5) == "finish");
        for (const std::string& answer :
             {b.acquired(), b.not_acquired(), b.waited(), b.sent(), b.send_failed(kind::conflict),
              b.not_sent(), b.output(), b.exited(), b.refused(), b.cut(), b.cancel(), b.deadline(),
              b.killed(), b.lingered(), b.internal_error()}) {
            CHECK(answer == "-");
        }
        CHECK(b.exit() == "exited 5 yes");
    }
}

TEST_CASE("exec: names on the wire") {
    CHECK(to_string(exit_reason::exited) == "exited");
    CHECK(to_string(exit_reason::timed_out) == "timed_out");
    CHECK(to_string(exit_reason::cancelled) == "cancelled");
    CHECK(to_string(exit_reason::lost) == "lost");
    CHECK(to_string(exit_reason::failed) == "failed");
    CHECK(to_string(started::yes) == "yes");
    CHECK(to_string(started::no) == "no");
    CHECK(to_string(started::unknown) == "unknown");
}
