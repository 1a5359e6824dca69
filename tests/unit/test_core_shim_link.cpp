// How the daemon keeps in touch with a runner: told what happened, what does it do next?
//
// The one rule above all: `run` only until the shim's first word, afterwards nothing but `follow`.
#include "base/utf8.hpp"
#include "core/shim_link.hpp"
#include "failures.hpp"
#include "shim_bench.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <random>
#include <string>

using namespace sandboxd;
using namespace sandboxd::core;
using namespace sandboxd::test;
using kind = cloud::failure_kind;

namespace {

constexpr milliseconds at{1'000};

std::string text_of(const shim_link::step& step) {
    switch (step.what) {
    case shim_link::action::install:
        return "install";
    case shim_link::action::run:
        return "run";
    case shim_link::action::follow:
        return "follow";
    case shim_link::action::read:
        return "read";
    case shim_link::action::wait:
        return "wait";
    case shim_link::action::deliver:
        return "deliver " + step.data.bytes;
    case shim_link::action::ended:
        return "ended";
    case shim_link::action::refused:
        return "refused";
    case shim_link::action::unusable:
        return "unusable";
    }
    return "?";
}

std::string exit_of(const shim_link& link) {
    const exec_exit& exit = link.exit();
    return std::string(to_string(exit.reason)) + " " +
           (exit.returncode ? std::to_string(*exit.returncode) : "null") + " " +
           std::string(to_string(exit.ran)) +
           (exit.error ? " " + std::string(info(exit.error->name()).text) : "");
}

// "name key=value ..."
shim_note note(std::string_view line) {
    shim_parser parser;
    parser.feed(line.starts_with("deepinfra") ? "" : hello());
    parser.feed(std::string(line) + "\n");
    if (!line.starts_with("deepinfra")) {
        parser.next();
    }
    return std::get<shim_note>(parser.next().value());
}

shim_note greeting(std::uint64_t pos = 0, std::string_view state = "attached") {
    std::string line = hello(pos, 0, state);
    line.pop_back();
    return note(line);
}

shim_data piece(std::uint64_t pos, std::string bytes) {
    return {false, pos, pos, std::move(bytes)};
}

// One whose `run` is being answered.
shim_link answering() {
    shim_link link(true, std::nullopt);
    REQUIRE(text_of(link.begin()) == "run");
    REQUIRE(text_of(link.on_answering()) == "read");
    return link;
}

shim_link greeted() {
    shim_link link = answering();
    REQUIRE(text_of(link.on_frame(at, greeting(0, "new"))) == "read");
    return link;
}

std::string last_frame(std::string_view line) {
    shim_link link = greeted();
    const std::string step = text_of(link.on_frame(at, note(line)));
    return step == "ended" ? exit_of(link) : step;
}

} // namespace

TEST_CASE("shim link: from the installation to the end") {
    shim_link link(false, std::nullopt);
    CHECK(text_of(link.begin()) == "install");
    CHECK(text_of(link.on_installed()) == "run");
    CHECK(text_of(link.on_answering()) == "read");
    CHECK_FALSE(link.heard());
    CHECK(text_of(link.on_frame(at, greeting(0, "new"))) == "read");
    CHECK(link.heard());
    CHECK(text_of(link.on_frame(at, piece(0, "abc"))) == "deliver abc");
    CHECK(link.pos() == 3);
    CHECK(text_of(link.on_frame(at, note("alive pos=3"))) == "read");
    CHECK(text_of(link.on_frame(
              at, note("exit reason=exited started=yes code=3 signal=- pos=3 out=3 err=0"))) ==
          "ended");
    CHECK(exit_of(link) == "exited 3 yes");
    CHECK(link.exit().message.empty());
    CHECK(link.certain());
}

TEST_CASE("shim link: each end") {
    CHECK(last_frame("exit reason=exited started=yes code=0") == "exited 0 yes");
    CHECK(last_frame("exit reason=exited started=yes code=255") == "exited 255 yes");
    CHECK(last_frame("exit reason=exited started=yes code=- signal=9") == "exited 137 yes");
    CHECK(last_frame("exit reason=timed_out started=yes code=- signal=9") == "timed_out 124 yes");
    CHECK(last_frame("exit reason=cancelled started=yes code=- signal=2") == "cancelled 130 yes");
    CHECK(last_frame("exit reason=cancelled started=no code=-") == "cancelled 130 no");
    CHECK(last_frame("exit reason=failed started=no errno=2 at=execve") == "exited 127 yes");
    CHECK(last_frame("exit reason=failed started=no errno=20 at=execve") == "exited 127 yes");
    CHECK(last_frame("exit reason=failed started=no errno=13 at=execve") == "exited 126 yes");
    CHECK(last_frame("exit reason=failed started=no errno=7 at=execve") ==
          "failed null no argument_too_long");
    CHECK(last_frame("exit reason=failed started=no errno=11 at=fork") ==
          "failed null no cloud_error");
    // never a success by guess
    for (const char* nonsense :
         {"exit", "exit reason=exited", "exit reason=exited code=256", "exit reason=exited code=x",
          "exit code=0", "exit reason=exited signal=128", "exit reason=well code=0",
          "exit reason=exited code=-1"}) {
        CAPTURE(nonsense);
        CHECK(last_frame(nonsense) == "lost null unknown outcome_unknown");
    }
}

TEST_CASE("shim link: what is lost") {
    CHECK(last_frame("lost claim=started started=unknown boot=same") ==
          "lost null unknown outcome_unknown");
    CHECK(last_frame("lost claim=started started=yes boot=other") ==
          "lost null yes outcome_unknown");
    CHECK(last_frame("lost claim=none started=unknown boot=-") ==
          "lost null unknown outcome_unknown");
    CHECK(last_frame("lost claim=none started=no boot=-") ==
          "lost null unknown outcome_unknown"); // we had been told otherwise
    CHECK(last_frame("lost claim=exited started=yes boot=same code=0") ==
          "lost null yes outcome_unknown");
}

TEST_CASE("shim link: a runner that died before the start is replaced, twice") {
    shim_link link = greeted();
    for (int again = 0; again < 2; ++again) {
        CHECK(text_of(link.on_frame(at, note("lost claim=claimed started=no boot=same"))) ==
              "wait");
        CHECK(text_of(link.on_waited()) == "run");
        CHECK(text_of(link.on_answering()) == "read");
        CHECK(text_of(link.on_frame(at, greeting(0, "new"))) == "read");
    }
    CHECK(text_of(link.on_frame(at, note("lost claim=claimed started=no boot=same"))) == "ended");
    CHECK(exit_of(link) == "lost null unknown outcome_unknown");
}

TEST_CASE("shim link: before the first word it is sent again, after it only followed") {
    for (const kind_of_failure& each : all_kinds) {
        CAPTURE(each.name);
        const cloud::failure failure = failure_of(each.kind);
        const bool open = failure.effect_unknown() || each.kind == kind::not_found_unproven;
        shim_link link(true, std::nullopt);
        link.begin();
        const shim_link::step first = link.on_post_failed(at, failure);
        CHECK(text_of(first) == (open ? "wait" : "refused"));
        CHECK(link.certain() == !open);
        if (open) {
            CHECK(text_of(link.on_waited()) == "run");
        }
        shim_link later = greeted();
        CHECK(text_of(later.on_cut(at, "cut")) == "wait");
        CHECK(text_of(later.on_waited()) == "follow");
        CHECK(text_of(later.on_post_failed(at, failure)) == "wait");
        CHECK(text_of(later.on_waited()) == "follow");
        CHECK(later.certain());
    }
}

TEST_CASE("shim link: while a run is out, the sandbox may not forget the id") {
    shim_link link(true, std::nullopt);
    CHECK(text_of(link.begin()) == "run");
    CHECK_FALSE(link.certain());
    link.on_answering(); // that says only that the platform has taken it
    CHECK_FALSE(link.certain());
    link.on_frame(at, greeting());
    CHECK(link.certain());
    // Once more, for a runner that died before it started anything.
    link.on_frame(at, note("lost claim=claimed started=no boot=same"));
    CHECK(text_of(link.on_waited()) == "run");
    CHECK_FALSE(link.certain());
    link.on_answering();
    link.on_frame(at, greeting());
    CHECK(link.certain());

    shim_link never(true, std::nullopt);
    never.begin();
    CHECK(text_of(never.on_terminal(at, "code 127", true)) == "install");
    CHECK(never.certain()); // nothing of the shim was executed
    CHECK(text_of(never.on_installed()) == "run");
    CHECK_FALSE(never.certain());
    never.on_answering();
    CHECK(text_of(never.on_terminal(at, "code 1", false)) == "wait");
    CHECK_FALSE(never.certain());
}

TEST_CASE("shim link: once a run is doubtful, no refusal says that nothing has run") {
    for (const kind_of_failure& each : all_kinds) {
        CAPTURE(each.name);
        shim_link link(true, std::nullopt);
        link.begin();
        link.on_post_failed(at, failure_of(kind::server_error));
        CHECK(text_of(link.on_waited()) == "run");
        CHECK(text_of(link.on_post_failed(at, failure_of(each.kind))) == "wait");
    }
    shim_link link(true, std::nullopt);
    link.begin();
    link.on_answering();
    CHECK(text_of(link.on_cut(at, "cut")) == "wait");
    CHECK(text_of(link.on_waited()) == "run");
    link.on_answering();
    link.on_frame(at, greeting());
    CHECK(text_of(link.on_frame(at, note("error name=socket_failed errno=1 at=x started=no"))) ==
          "wait"); // of this call only
    CHECK_FALSE(link.certain());
}

TEST_CASE("shim link: a runner that is crowded is asked again, and not for ever") {
    const shim_note busy = note("error name=busy errno=16 at=followers started=no");
    for (const bool first : {true, false}) {
        CAPTURE(first); // nothing was heard of the command before
        shim_link link = first ? answering() : greeted();
        milliseconds now = at;
        if (!first) {
            link.on_cut(now, "cut");
            link.on_waited();
            link.on_answering();
        }
        int asked = 0;
        std::string step;
        do {
            link.on_frame(now, greeting(0, "none"));
            const shim_link::step next = link.on_frame(now, busy);
            step = text_of(next);
            now += next.delay;
            if (step == "wait") {
                REQUIRE(text_of(link.on_waited()) == "follow");
                link.on_answering();
            }
        } while (step == "wait" && ++asked < 10'000);
        CHECK(step == "ended");
        CHECK(exit_of(link) == "lost null yes outcome_unknown");
        CHECK(now - at >= milliseconds(3'600'000));
        CHECK(asked < 500);
    }
}

TEST_CASE("shim link: whoever gets a place among the crowd now and then goes on") {
    shim_link link = greeted();
    milliseconds now = at;
    for (int i = 0; i < 1'000; ++i) {
        link.on_cut(now, "cut");
        REQUIRE(text_of(link.on_waited()) == "follow");
        link.on_answering();
        link.on_frame(now, greeting(0, "none"));
        REQUIRE(text_of(link.on_frame(
                    now, note("error name=busy errno=16 at=followers started=no"))) == "wait");
        link.on_waited();
        link.on_answering();
        link.on_frame(now, greeting());
        now += milliseconds(2'000);
        REQUIRE(text_of(link.on_frame(now, note("more why=superseded pos=0"))) == "wait");
        link.on_waited();
        link.on_answering();
        link.on_frame(now, greeting());
        now += milliseconds(10'000);
    }
}

TEST_CASE("shim link: a silent command is followed a second at a time, counted from the start") {
    shim_link link = greeted();
    milliseconds now = at;
    for (int i = 0; i < 100; ++i) {
        now += milliseconds(997);
        REQUIRE(text_of(link.on_frame(now, note("more why=seconds pos=0"))) == "follow");
        link.on_answering();
        now += milliseconds(3);
        REQUIRE(text_of(link.on_frame(now, greeting())) == "read");
    }
}

TEST_CASE("shim link: a connection that was let go of is followed by another one") {
    shim_link link = greeted();
    link.on_frame(at, piece(0, "abc"));
    CHECK(text_of(link.on_let_go()) == "follow");
    CHECK(link.pos() == 3);
    link.on_answering();
    CHECK(text_of(link.on_frame(at, greeting(3))) == "read");
}

TEST_CASE("shim link: a follower that left without a last word, after a while, is no riddle") {
    shim_link link = greeted();
    milliseconds now = at;
    for (int i = 0; i < 100; ++i) {
        now += milliseconds(1'200'000);
        REQUIRE(text_of(link.on_terminal(now, "the shim ended with code 0", false)) == "wait");
        REQUIRE(text_of(link.on_waited()) == "follow");
        link.on_answering();
        REQUIRE(text_of(link.on_frame(now, greeting())) == "read");
    }
    // At once it is one.
    std::string step = "wait";
    for (int i = 0; i < 10 && step == "wait"; ++i) {
        step = text_of(link.on_terminal(now, "the shim ended with code 0", false));
        link.on_waited();
        link.on_answering();
        link.on_frame(now, greeting());
    }
    CHECK(step == "ended");
}

TEST_CASE("shim link: a shim that is not there is put there, once before each of its words") {
    shim_link link = answering();
    CHECK(text_of(link.on_terminal(at, "code 127", true)) == "install");
    CHECK(text_of(link.on_installed()) == "run");
    link.on_answering();
    SUBCASE("and then runs") {
        CHECK(text_of(link.on_frame(at, greeting(0, "new"))) == "read");
        link.on_cut(at, "cut");
        CHECK(text_of(link.on_waited()) == "follow");
        link.on_answering();
        CHECK(text_of(link.on_terminal(at, "code 127", true)) ==
              "install"); // the command has removed it
        CHECK(text_of(link.on_installed()) == "follow");
    }
    SUBCASE("and cannot run") {
        CHECK(text_of(link.on_terminal(at, "code 126", true)) == "unusable");
    }
    SUBCASE("and runs without a word") {
        CHECK(text_of(link.on_terminal(at, "code 1", false)) ==
              "wait"); // it may have started the command
        CHECK(text_of(link.on_waited()) == "run");
        link.on_answering();
        CHECK(text_of(link.on_terminal(at, "code 126", true)) ==
              "wait"); // so no other way of running it is taken
    }
}

TEST_CASE("shim link: arguments that the kernel may refuse say nothing of the shim") {
    shim_link link(true, std::nullopt);
    link.expect_long_arguments();
    std::string step = text_of(link.begin());
    int calls = 0;
    while (step != "ended" && ++calls < 20) {
        REQUIRE(step == "run");
        link.on_answering();
        step = text_of(link.on_terminal(at, "code 126", true));
        if (step == "install") step = text_of(link.on_installed());
        if (step == "wait") step = text_of(link.on_waited());
    }
    CHECK(exit_of(link) == "lost null unknown outcome_unknown");
    CHECK(link.would_not_start());

    shim_link heard = greeted(); // by one that has said a word, no such thing is said
    step = "follow";
    for (calls = 0; step != "ended" && calls < 20; ++calls) {
        heard.on_cut(at, "cut");
        heard.on_waited();
        heard.on_answering();
        step = text_of(heard.on_terminal(at, "code 1", false));
        if (step == "install") heard.on_installed();
    }
    CHECK_FALSE(heard.would_not_start());
}

TEST_CASE("shim link: an installation that fails") {
    const auto fresh = [] {
        shim_link link(false, std::nullopt);
        link.begin();
        return link;
    };
    for (const kind_of_failure& each : all_kinds) {
        CAPTURE(each.name);
        shim_link link = fresh();
        const shim_link::step step = link.on_install_failed(at, failure_of(each.kind));
        CHECK(text_of(step) == "refused");
        CHECK_FALSE(step.failure->effect_unknown()); // nothing of the command was sent
    }
    shim_link link = fresh();
    CHECK(text_of(link.on_not_installed("noexec", true)) == "unusable");
    shim_link heard = greeted();
    CHECK(text_of(heard.on_not_installed("noexec", true)) == "ended");
    CHECK(exit_of(heard) == "lost null unknown outcome_unknown");
}

TEST_CASE("shim link: errors of the shim") {
    CHECK(last_frame("error name=claim_failed errno=28 at=open started=no") ==
          "failed null no cloud_error");
    CHECK(last_frame("error name=id_in_use errno=- at=- started=unknown") ==
          "failed null no exec_id_in_use");
    CHECK(last_frame("error name=protocol errno=- at=- started=unknown") ==
          "lost null unknown outcome_unknown");
    shim_link link = greeted();
    link.on_frame(at, piece(0, "x"));
    link.on_cut(at, "cut");
    link.on_waited();
    link.on_answering();
    link.on_frame(at, greeting(1));
    CHECK(text_of(link.on_frame(at, note("error name=socket_failed errno=1 at=x started=no"))) ==
          "wait");
}

TEST_CASE("shim link: what has printed was started, whatever the sandbox says") {
    for (const char* end : {"exit reason=cancelled started=no code=- signal=- pos=2 out=2 err=0",
                            "exit reason=failed started=no errno=28 at=pipe pos=2 out=2 err=0"}) {
        CAPTURE(end);
        shim_link link = greeted();
        REQUIRE(text_of(link.on_frame(at, piece(0, "ab"))) == "deliver ab");
        CHECK(text_of(link.on_frame(at, note(end))) == "ended");
        CHECK(exit_of(link) == "lost null yes outcome_unknown");
    }
    shim_link link = greeted();
    REQUIRE(text_of(link.on_frame(at, piece(0, "ab"))) == "deliver ab");
    CHECK(text_of(link.on_frame(
              at, note("error name=claim_failed errno=28 at=claim started=no"))) == "wait");
    CHECK(text_of(link.on_waited()) == "follow");
}

TEST_CASE("shim link: a full workspace is said in words") {
    shim_link link = greeted();
    CHECK(text_of(link.on_frame(
              at, note("error name=claim_failed errno=28 at=claim started=no"))) == "ended");
    CHECK(exit_of(link) == "failed null no cloud_error");
    CHECK(link.exit().message.find("No space left on device") != std::string::npos);
    CHECK(link.exit().error->hint().find("full") != std::string::npos);
}

TEST_CASE("shim link: a position that does not follow is not delivered") {
    shim_link link = greeted();
    link.on_frame(at, piece(0, "abc"));
    CHECK(text_of(link.on_frame(at, piece(0, "abc"))) == "wait");
    CHECK(link.pos() == 3);
    link.on_waited();
    link.on_answering();
    CHECK(text_of(link.on_frame(at, greeting(2))) == "wait");
    link.on_waited();
    link.on_answering();
    CHECK(text_of(link.on_frame(at, greeting(3))) == "read");
    CHECK(text_of(link.on_frame(at, note("gap pos=0 n=5 out=5 err=0"))) == "wait");
    CHECK((link.pos() == 3 && link.dropped() == 0));
}

TEST_CASE("shim link: what was given up is counted") {
    shim_link link = greeted();
    CHECK(text_of(link.on_frame(at, note("gap pos=0 n=5 out=5 err=0"))) == "read");
    CHECK((link.pos() == 5 && link.dropped() == 5));
    CHECK(text_of(link.on_frame(at, piece(5, "x"))) == "deliver x");
}

TEST_CASE("shim link: nonsense is borne a few times, and counted anew when something comes") {
    const auto visit = [](shim_link& link, milliseconds now) {
        CHECK(text_of(link.on_waited()) == "follow");
        link.on_answering();
        CHECK(text_of(link.on_frame(now, greeting(link.pos()))) == "read");
    };
    shim_link link = greeted();
    for (int i = 0; i < 5; ++i) {
        CHECK(text_of(link.on_nonsense(at, "?")) == "wait");
        visit(link, at);
    }
    link.on_frame(at, piece(0, "x"));
    milliseconds last{0};
    for (int i = 0; i < 5; ++i) {
        const shim_link::step step =
            link.on_frame(at, note("more why=seconds pos=1")); // came and left at once
        CHECK(text_of(step) == (i == 0 ? "follow" : "wait"));
        if (i == 0) {
            link.on_answering();
            link.on_frame(at, greeting(1));
        } else {
            CHECK(step.delay >= last);
            last = step.delay;
            visit(link, at);
        }
    }
    CHECK(text_of(link.on_nonsense(at, "?")) == "wait");
    CHECK(text_of(link.on_nonsense(at, "?")) == "ended");
    CHECK(exit_of(link) == "lost null yes outcome_unknown"); // there was output
}

TEST_CASE("shim link: a silent command of many hours is followed without end") {
    shim_link link = greeted();
    milliseconds now = at;
    for (int i = 0; i < 1'000; ++i) {
        now += milliseconds(1'200'000);
        REQUIRE(text_of(link.on_frame(now, note("more why=seconds pos=0"))) == "follow");
        link.on_answering();
        REQUIRE(text_of(link.on_frame(now, greeting())) == "read");
        now += milliseconds(600'000);
        REQUIRE(text_of(link.on_terminal(now, "the platform's cap", false)) == "wait");
        REQUIRE(text_of(link.on_waited()) == "follow");
        link.on_answering();
        REQUIRE(text_of(link.on_frame(now, greeting())) == "read");
        now += milliseconds(15'000);
        REQUIRE(text_of(link.on_frame(now, note("alive pos=0"))) == "read");
    }
}

TEST_CASE("shim link: an outage ends when the sandbox is stopped, also before the first word") {
    const milliseconds limit(3'600'000);
    for (const bool heard : {false, true}) {
        CAPTURE(heard);
        shim_link link = heard ? greeted() : answering();
        CHECK(text_of(link.on_cut(at, "cut")) == "wait");
        link.on_waited();
        CHECK(text_of(link.on_post_failed(at + limit - milliseconds(1),
                                          failure_of(kind::interrupted))) == "wait");
        link.on_waited();
        CHECK(text_of(link.on_post_failed(at + limit, failure_of(kind::interrupted))) == "ended");
        CHECK(exit_of(link) == "lost null unknown outcome_unknown");
    }
}

TEST_CASE("shim link: a platform that answers and does not say what it did is asked for a minute") {
    const milliseconds limit(60'000);
    for (const kind what : {kind::server_error, kind::bad_answer, kind::not_found_unproven}) {
        CAPTURE(static_cast<int>(what));
        shim_link link(true, std::nullopt);
        link.begin();
        CHECK(text_of(link.on_post_failed(at, failure_of(what))) == "wait");
        link.on_waited();
        CHECK(text_of(link.on_post_failed(at + limit - milliseconds(1), failure_of(what))) ==
              "wait");
        link.on_waited();
        CHECK(text_of(link.on_post_failed(at + limit, failure_of(what))) == "ended");
        CHECK(exit_of(link) == "lost null unknown outcome_unknown");
        CHECK(link.exit().message.find("for 60 s the platform has not said") == 0);
    }
}

TEST_CASE(
    "shim link: that minute begins anew after an outage, and does not count a busy platform") {
    for (const kind what :
         {kind::interrupted, kind::unreachable, kind::rate_limited, kind::no_capacity}) {
        CAPTURE(static_cast<int>(what));
        shim_link link(true, std::nullopt);
        link.begin();
        REQUIRE(text_of(link.on_post_failed(at, failure_of(kind::server_error))) == "wait");
        for (int minutes = 2; minutes < 50; ++minutes) {
            link.on_waited();
            REQUIRE(text_of(link.on_post_failed(at + std::chrono::minutes(minutes),
                                                failure_of(what))) == "wait");
        }
        link.on_waited();
        CHECK(text_of(link.on_post_failed(at + std::chrono::minutes(50),
                                          failure_of(kind::server_error))) == "wait");
        CHECK(text_of(link.on_waited()) == "run");
        link.on_answering();
        CHECK(text_of(link.on_frame(at + std::chrono::minutes(51), greeting())) == "read");
    }
}

TEST_CASE("shim link: the working directory that was not there is told with the end") {
    shim_link link = greeted();
    CHECK(text_of(link.on_frame(at, note("note name=cwd errno=2 cwd=/workspace"))) == "read");
    link.on_frame(at, note("exit reason=exited started=yes code=0"));
    CHECK(exit_of(link) == "exited 0 yes");
    CHECK(link.exit().message.find("/workspace") != std::string::npos);
}

TEST_CASE("shim link: what it tells is text, whatever bytes it is made of") {
    shim_link link(true, std::nullopt, "/workspace/caf\xe9");
    link.begin();
    link.on_answering();
    link.on_frame(at, greeting(0, "new"));
    link.on_frame(at, note("note name=cwd errno=2 cwd=/w%FF"));
    link.on_frame(at, note("exit reason=exited started=yes code=0"));
    CHECK(link.exit().message == "the working directory /workspace/caf\xef\xbf\xbd could not be "
                                 "entered, so this ran in /w\xef\xbf\xbd");
    shim_link failed = answering();
    failed.on_frame(at, greeting(0, "none"));
    failed.on_frame(at, note("error name=spawn_failed errno=11 at=%C3 started=no"));
    REQUIRE(failed.exit().error);
    CHECK(is_utf8(failed.exit().error->what()));
}

TEST_CASE("shim link: after the daemon was started anew it only follows") {
    shim_link link(false, 70);
    CHECK(text_of(link.begin()) == "follow");
    link.on_answering();
    CHECK(text_of(link.on_terminal(at, "code 127", true)) == "install");
    CHECK(text_of(link.on_installed()) == "follow");
    link.on_answering();
    CHECK(text_of(link.on_frame(at, greeting(70))) == "read");
    CHECK(text_of(link.on_frame(at, piece(70, "x"))) == "deliver x");
}

TEST_CASE("shim link: a random walk never runs after a word, delivers each byte once and ends") {
    std::mt19937 random(4711);
    const auto any_failure = [&] {
        return failure_of(all_kinds[random() % all_kinds.size()].kind);
    };
    int ends = 0;
    int refusals = 0;
    for (int walk = 0; walk < 20'000; ++walk) {
        CAPTURE(walk);
        shim_link link(walk % 2 == 0, std::nullopt);
        milliseconds now = at;
        std::uint64_t delivered = 0;
        bool heard = false;
        bool claimed_only = false;
        bool over = false;
        shim_link::step step = link.begin();
        for (int count = 0; count < 3'000 && !over; ++count) {
            now += milliseconds(random() % 3'000);
            switch (step.what) {
            case shim_link::action::install:
                switch (random() % 4) {
                case 0:
                    step = link.on_install_failed(now, any_failure());
                    break;
                case 1:
                    step = link.on_not_installed("no", random() % 2 == 0);
                    break;
                default:
                    step = link.on_installed();
                    break;
                }
                break;
            case shim_link::action::run:
                REQUIRE((!heard || claimed_only));
                [[fallthrough]];
            case shim_link::action::follow:
                step = random() % 3 == 0 ? link.on_post_failed(now, any_failure())
                                         : link.on_answering();
                break;
            case shim_link::action::wait:
                REQUIRE(step.delay > milliseconds(0));
                now += step.delay;
                step = link.on_waited();
                break;
            case shim_link::action::deliver:
                REQUIRE(step.data.pos >= delivered);
                delivered = step.data.pos + step.data.bytes.size();
                REQUIRE(delivered == link.pos());
                step = shim_link::step{};
                break;
            case shim_link::action::read:
                switch (random() % 12) {
                case 0:
                    step = link.on_cut(now, "cut");
                    break;
                case 1:
                    step = link.on_nonsense(now, "?");
                    break;
                case 2:
                    step = link.on_terminal(now, "end", random() % 2 == 0);
                    break;
                case 3:
                    step = link.on_frame(now, note("more why=seconds pos=0"));
                    break;
                case 4:
                    step = link.on_frame(now, note("more why=superseded pos=0"));
                    break;
                case 5:
                    step = link.on_frame(now, note("lost claim=claimed started=no boot=same"));
                    claimed_only = true;
                    break;
                case 6:
                    step = link.on_frame(now, note("error name=protocol started=no errno=- at=-"));
                    break;
                case 7:
                    if (!link.heard()) { // the parser sees to that
                        break;
                    }
                    step = link.on_frame(
                        now, piece(random() % 2 == 0 ? link.pos() : random() % 10, "xyz"));
                    break;
                default:
                    step = link.on_frame(now,
                                         greeting(random() % 4 != 0 ? link.pos() : random() % 10));
                    heard = true;
                    claimed_only = false;
                    break;
                }
                break;
            case shim_link::action::ended:
                ++ends;
                REQUIRE(link.exit().reason != exit_reason::exited); // nothing said so
                if (delivered > 0 && link.exit().reason == exit_reason::lost) {
                    REQUIRE(link.exit().ran == started::yes);
                }
                over = true;
                break;
            case shim_link::action::refused:
            case shim_link::action::unusable:
                ++refusals;
                REQUIRE(delivered == 0);
                REQUIRE((!heard || claimed_only));
                over = true;
                break;
            }
        }
        REQUIRE(over);
    }
    CHECK(ends > 1'000);
    CHECK(refusals > 1'000);
}
