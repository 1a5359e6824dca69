// Bringing a sandbox up that exists: looking at it, starting it, waiting for it, giving it up.
#include "bring_up_bench.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::test;
using action = bring_up_fsm::action;
using bench = bring_up_bench;
using kind = cloud::failure_kind;

TEST_CASE("bring up: gone is only what a listing confirms") {
    bench b(known_record(life_state::unknown));
    REQUIRE(b.begin() == "get");
    CHECK(b.get_failed(kind::not_found) == "list");
    SUBCASE("the listing does not show it") {
        CHECK(b.listed({shown("sb_other", sandbox_state::running)}) == "save");
        CHECK(b.record.sandbox_id.empty());
        CHECK(b.record.create_pending);
        CHECK(b.record.creation_id == "seed-1");
        CHECK(b.record.generation == 4);
        REQUIRE(b.saved() == "create");
        REQUIRE(b.created("sb_new") == "save");
        REQUIRE(b.saved() == "get");
        REQUIRE(b.got(sandbox_state::running) == "save");
        CHECK(b.saved() == "done");
        CHECK(b.fsm.state_lost());
        CHECK(b.fsm.created());
        CHECK(b.record.generation == 5);
    }
    SUBCASE("the listing shows it as deleted") {
        CHECK(b.listed({shown("sb_old", sandbox_state::deleted)}) == "save");
        CHECK(b.fsm.state_lost());
    }
    SUBCASE("the listing shows it running") {
        CHECK(b.listed({shown("sb_old", sandbox_state::running)}) == "save");
        CHECK(b.record.sandbox_id == "sb_old");
        CHECK(b.saved() == "done");
        CHECK_FALSE(b.fsm.state_lost());
    }
    SUBCASE("the listing shows it booting") {
        CHECK(b.listed({shown("sb_old", sandbox_state::starting)}) == "wait 100");
        CHECK(b.waited() == "get");
    }
    SUBCASE("the listing shows it stopped") {
        CHECK(b.listed({shown("sb_old", sandbox_state::stopped)}) == "start");
    }
}

TEST_CASE("bring up: a sandbox reported as deleted is gone") {
    bench b(known_record(life_state::stopped));
    REQUIRE(b.begin() == "get");
    CHECK(b.got(sandbox_state::deleted) == "save");
    CHECK(b.record.create_pending);
    CHECK(b.fsm.state_lost());
    CHECK(b.record.generation == 4);
    CHECK(b.record.first_boot == 5);
}

TEST_CASE("bring up: how a look can fail") {
    const std::map<std::string_view, std::string> expected{{"unreachable", "wait 500"},
                                                           {"interrupted", "wait 500"},
                                                           {"unauthorized", "fail unauthorized"},
                                                           {"forbidden", "fail unauthorized"},
                                                           {"not_found", "list"},
                                                           {"not_found_unproven", "wait 500"},
                                                           {"conflict", "fail cloud_error"},
                                                           {"too_large", "fail cloud_error"},
                                                           {"bad_request", "fail cloud_error"},
                                                           {"cap_reached", "fail rate_limited"},
                                                           {"rate_limited", "wait 500"},
                                                           {"no_capacity", "wait 500"},
                                                           {"server_error", "wait 500"},
                                                           {"bad_answer", "wait 500"}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b(known_record(life_state::stopped));
        REQUIRE(b.begin() == "get");
        CHECK(b.get_failed(each.kind) == expected.at(each.name));
        CHECK(b.record.sandbox_id == "sb_old");
        CHECK(b.record.state == life_state::stopped);
        if (b.last.what == action::fail) CHECK(b.last.error->sandbox_id == "sb_old");
        if (b.last.what == action::wait) CHECK(b.waited() == "get");
    }
}

TEST_CASE("bring up: looks that fail for long end it, one good look starts the count anew") {
    bench b(known_record(life_state::stopped));
    REQUIRE(b.begin() == "get");
    for (int round = 0; round < 3; ++round) {
        REQUIRE(b.get_failed(kind::server_error).starts_with("wait"));
        b.now += milliseconds(30'000);
        REQUIRE(b.fsm.on_waited(b.now).what == action::get);
        REQUIRE(b.got(sandbox_state::starting).starts_with("wait"));
        REQUIRE(b.waited() == "get");
    }
    REQUIRE(b.get_failed(kind::server_error) == "wait 500");
    b.now += milliseconds(45'000);
    CHECK(b.get_failed(kind::server_error) == "fail cloud_error");
}

TEST_CASE("bring up: every state that a look can show") {
    struct row {
        sandbox_state state;
        const char* lasting;
        const char* one_session;
        life_state recorded;
    };
    const row rows[] = {
        {sandbox_state::creating, "wait 100", "wait 100", life_state::creating},
        {sandbox_state::starting, "wait 100", "wait 100", life_state::starting},
        {sandbox_state::running, "save", "save", life_state::running},
        {sandbox_state::stopping, "wait 100", "wait 100", life_state::stopping},
        {sandbox_state::stopped, "start", "remove", life_state::stopped},
        {sandbox_state::failed, "start", "start", life_state::unknown},
        {sandbox_state::deleted, "save", "save", life_state::creating},
        {sandbox_state::unknown, "wait 100", "wait 100", life_state::unknown},
    };
    for (const row& each : rows) {
        CAPTURE(static_cast<int>(each.state));
        for (const bool persistent : {true, false}) {
            bench b(known_record(life_state::unknown, persistent));
            REQUIRE(b.begin() == "get");
            CHECK(b.got(each.state) == (persistent ? each.lasting : each.one_session));
            if (persistent) CHECK(b.record.state == each.recorded);
        }
    }
}

TEST_CASE("bring up: a stopped sandbox is started") {
    bench b(known_record(life_state::stopped));
    REQUIRE(b.begin() == "get");
    REQUIRE(b.got(sandbox_state::stopped) == "start");
    CHECK(b.fsm.doing() == "starting the sandbox");
    CHECK(b.started() == "wait 100");
    CHECK(b.record.state == life_state::starting);
    CHECK(b.fsm.doing() == "waiting for the sandbox to start");
    CHECK(b.waited() == "get");
    CHECK(b.got(sandbox_state::running) == "save");
    CHECK(b.saved() == "done");
    CHECK(b.record.generation == 5);
    CHECK(b.fsm.resumed());
    CHECK_FALSE(b.fsm.created());
    CHECK_FALSE(b.fsm.state_lost());
}

TEST_CASE("bring up: one that is being stopped is waited for, then started") {
    bench b(known_record(life_state::stopping));
    REQUIRE(b.begin() == "get");
    REQUIRE(b.got(sandbox_state::stopping) == "wait 100");
    CHECK(b.fsm.doing() == "waiting for the sandbox to stop, so that it can be started");
    REQUIRE(b.waited() == "get");
    CHECK(b.got(sandbox_state::stopped) == "start");
}

TEST_CASE("bring up: one that somebody else has started counts as resumed") {
    bench b(known_record(life_state::stopped));
    REQUIRE(b.begin() == "get");
    REQUIRE(b.got(sandbox_state::starting) == "wait 100");
    REQUIRE(b.waited() == "get");
    REQUIRE(b.got(sandbox_state::running) == "save");
    CHECK(b.fsm.resumed());
    CHECK(b.record.generation == 5);
}

TEST_CASE("bring up: how a start can fail") {
    const std::map<std::string_view, std::pair<std::string, std::string>> expected{
        {"unreachable", {"wait 500", "start"}},
        {"interrupted", {"wait 500", "get"}},
        {"unauthorized", {"fail unauthorized", ""}},
        {"forbidden", {"fail unauthorized", ""}},
        {"not_found", {"list", ""}},
        {"not_found_unproven", {"wait 500", "start"}},
        {"conflict", {"wait 100", "get"}},
        {"too_large", {"fail cloud_error", ""}},
        {"bad_request", {"fail cloud_error", ""}},
        {"cap_reached", {"queue", ""}},
        {"rate_limited", {"queue", ""}},
        {"no_capacity", {"wait 500", "start"}},
        {"server_error", {"wait 500", "get"}},
        {"bad_answer", {"wait 500", "get"}}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b(known_record(life_state::stopped));
        REQUIRE(b.begin() == "get");
        REQUIRE(b.got(sandbox_state::stopped) == "start");
        b.crowded = true;
        CHECK(b.start_failed(each.kind) == expected.at(each.name).first);
        CHECK(b.record.sandbox_id == "sb_old");
        if (b.last.what == action::wait) CHECK(b.waited() == expected.at(each.name).second);
        if (b.last.what == action::fail) CHECK(b.last.error->sandbox_id == "sb_old");
    }
}

TEST_CASE("bring up: a start that is not found and not listed is gone") {
    bench b(known_record(life_state::stopped));
    REQUIRE(b.begin() == "get");
    REQUIRE(b.got(sandbox_state::stopped) == "start");
    REQUIRE(b.start_failed(kind::not_found) == "list");
    CHECK(b.listed({}) == "save");
    CHECK(b.record.create_pending);
    CHECK(b.fsm.state_lost());
}

TEST_CASE("bring up: 409 three times and then running") {
    bench b(known_record(life_state::stopped));
    REQUIRE(b.begin() == "get");
    for (int i = 0; i < 3; ++i) {
        REQUIRE(b.got(sandbox_state::stopped) == "start");
        REQUIRE(b.start_failed(kind::conflict).starts_with("wait"));
        REQUIRE(b.waited() == "get");
    }
    CHECK(b.got(sandbox_state::running) == "save");
    CHECK(b.saved() == "done");
    CHECK(b.record.generation == 5);
}

// Whatever a start is answered with while the sandbox stays stopped: it ends, in time, with a
// bounded number of requests, and the sandbox is kept.
TEST_CASE("bring up: starts that never take effect come to an end") {
    for (const std::string how :
         {"accepted", "conflict", "server_error", "not_found", "no_capacity"}) {
        CAPTURE(how);
        bench b(known_record(life_state::stopped));
        std::string answer = b.begin();
        int requests = 0;
        while (!answer.starts_with("fail") && requests < 2'000) {
            REQUIRE(answer != "remove");
            REQUIRE(answer != "create");
            REQUIRE(answer != "done");
            if (answer == "get") {
                answer = b.got(sandbox_state::stopped);
            } else if (answer == "list") {
                answer = b.listed({shown("sb_old", sandbox_state::stopped)});
            } else if (answer == "start") {
                if (how == "accepted") {
                    answer = b.started();
                } else {
                    for (const auto& each : all_kinds) {
                        if (each.name == how) answer = b.start_failed(each.kind);
                    }
                }
            } else {
                answer = b.waited();
                continue;
            }
            ++requests;
            b.now += milliseconds(20); // what a request takes
        }
        CHECK(requests < 1'000);
        CHECK(b.now >= milliseconds(30'000)); // not given up at once either
        CHECK(b.now <= milliseconds(600'000));
        CHECK(answer.starts_with("fail"));
        CHECK(b.record.sandbox_id == "sb_old");
        if (b.last.error) CHECK(b.last.error->sandbox_id == "sb_old");
    }
}

TEST_CASE("bring up: a new sandbox that hangs is deleted and made once more") {
    bench b;
    b.create("sb_1");
    REQUIRE(b.got(sandbox_state::creating) == "wait 100");
    CHECK(b.wait_while(sandbox_state::creating) == "remove");
    CHECK(b.now >= milliseconds(120'000));
    CHECK(b.now < milliseconds(125'000));
    CHECK(b.fsm.doing() == "deleting a sandbox that did not boot");
    CHECK(b.removed() == "save");
    CHECK(b.record.creation_id == "seed-2");
    CHECK(b.record.attempt == 1);
    CHECK(b.record.create_pending);
    CHECK(b.record.sandbox_id.empty());
    REQUIRE(b.saved() == "create");
    REQUIRE(b.created("sb_2") == "save");
    REQUIRE(b.saved() == "get");
    SUBCASE("the second one boots") {
        REQUIRE(b.got(sandbox_state::running) == "save");
        CHECK(b.saved() == "done");
        CHECK(b.record.generation == 1);
        CHECK_FALSE(b.fsm.state_lost());
    }
    SUBCASE("the second one has the whole time again, and is deleted too") {
        REQUIRE(b.got(sandbox_state::creating).starts_with("wait"));
        const milliseconds began = b.now;
        CHECK(b.wait_while(sandbox_state::creating) == "remove");
        CHECK(b.now - began >= milliseconds(115'000));
        CHECK(b.removed() == "fail boot_failed");
    }
    SUBCASE("the second one fails") {
        REQUIRE(b.got(sandbox_state::failed) == "remove");
        CHECK(b.removed() == "fail boot_failed");
        CHECK_FALSE(b.record.create_pending);
    }
}

TEST_CASE("bring up: a new sandbox that fails is deleted and made once more") {
    bench b;
    b.create("sb_1");
    CHECK(b.got(sandbox_state::failed) == "remove");
    CHECK(b.removed() == "save");
    CHECK(b.saved() == "create");
}

TEST_CASE("bring up: a new sandbox that vanishes is made once more, and nothing was lost") {
    bench b;
    b.create("sb_1");
    REQUIRE(b.get_failed(kind::not_found) == "list");
    CHECK(b.listed({}) == "save");
    CHECK(b.record.creation_id == "seed-2");
    CHECK_FALSE(b.fsm.state_lost());
    REQUIRE(b.saved() == "create");
    REQUIRE(b.created("sb_2") == "save");
    REQUIRE(b.saved() == "get");
    REQUIRE(b.get_failed(kind::not_found) == "list");
    CHECK(b.listed({}) == "fail boot_failed");
    CHECK_FALSE(b.record.create_pending);
}

TEST_CASE("bring up: how a removal can fail") {
    const std::map<std::string_view, std::string> expected{{"unreachable", "wait 500"},
                                                           {"interrupted", "wait 500"},
                                                           {"unauthorized", "fail unauthorized"},
                                                           {"forbidden", "fail unauthorized"},
                                                           {"not_found", "list"},
                                                           {"not_found_unproven", "wait 500"},
                                                           {"conflict", "fail cloud_error"},
                                                           {"too_large", "fail cloud_error"},
                                                           {"bad_request", "fail cloud_error"},
                                                           {"cap_reached", "fail rate_limited"},
                                                           {"rate_limited", "wait 500"},
                                                           {"no_capacity", "wait 500"},
                                                           {"server_error", "wait 500"},
                                                           {"bad_answer", "wait 500"}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b;
        b.create("sb_1");
        REQUIRE(b.got(sandbox_state::failed) == "remove");
        CHECK(b.remove_failed(each.kind) == expected.at(each.name));
        CHECK(b.record.sandbox_id == "sb_1"); // not forgotten: it may cost money
        if (b.last.what == action::wait) CHECK(b.waited() == "remove");
        if (b.last.what == action::list) CHECK(b.listed({}) == "save");
    }
}

TEST_CASE("bring up: a removal that is not found but listed is tried again, not for ever") {
    bench b;
    b.create("sb_1");
    std::string answer = b.got(sandbox_state::failed);
    int requests = 0;
    while (!answer.starts_with("fail") && requests < 1'000) {
        REQUIRE(answer != "create");
        REQUIRE(answer != "save");
        if (answer == "remove") {
            answer = b.remove_failed(kind::not_found);
        } else if (answer == "list") {
            answer = b.listed({shown("sb_1", sandbox_state::failed)});
        } else if (answer == "get") {
            answer = b.got(sandbox_state::failed);
        } else {
            answer = b.waited();
            continue;
        }
        ++requests;
        b.now += milliseconds(20);
    }
    CHECK(answer == "fail cloud_error");
    CHECK(requests < 500);
    CHECK(b.record.sandbox_id == "sb_1");
}

TEST_CASE("bring up: one that may hold files is started once more and never deleted") {
    bench b(known_record(life_state::stopped));
    REQUIRE(b.begin() == "get");
    SUBCASE("it is reported as failed") {
        REQUIRE(b.got(sandbox_state::failed) == "start");
        CHECK(b.fsm.doing() == "starting the sandbox once more");
        REQUIRE(b.started() == "wait 100");
        REQUIRE(b.waited() == "get");
        CHECK(b.got(sandbox_state::failed) == "fail boot_failed");
    }
    SUBCASE("it hangs") {
        REQUIRE(b.got(sandbox_state::stopped) == "start");
        REQUIRE(b.started() == "wait 100");
        CHECK(b.wait_while(sandbox_state::starting) == "start");
        CHECK(b.now >= milliseconds(120'000));
        REQUIRE(b.started() == "wait 100");
        CHECK(b.wait_while(sandbox_state::starting) == "fail boot_failed");
        CHECK(b.now >= milliseconds(240'000));
    }
    SUBCASE("starting it again is refused") {
        REQUIRE(b.got(sandbox_state::failed) == "start");
        REQUIRE(b.start_failed(kind::conflict) == "wait 100");
        REQUIRE(b.waited() == "get");
        CHECK(b.got(sandbox_state::failed) == "fail boot_failed");
    }
    CHECK(b.record.state == life_state::failed);
    CHECK(b.record.sandbox_id == "sb_old");
    CHECK(b.last.error->sandbox_id == "sb_old");
    CHECK(b.last.error->hint().find("terminate") != std::string::npos);
}

TEST_CASE("bring up: one reported as failed may come back") {
    bench b(known_record(life_state::failed));
    REQUIRE(b.begin() == "get");
    REQUIRE(b.got(sandbox_state::failed) == "start");
    REQUIRE(b.started() == "wait 100");
    REQUIRE(b.waited() == "get");
    REQUIRE(b.got(sandbox_state::running) == "save");
    CHECK(b.saved() == "done");
    CHECK(b.record.generation == 5);
    CHECK(b.record.first_boot == 0); // it is the sandbox that it was
    CHECK(b.fsm.resumed());
}

TEST_CASE("bring up: a create that was under way when the daemon died may still be deleted") {
    for (const life_state state : {life_state::creating, life_state::failed, life_state::unknown}) {
        sandbox_record record = known_record(state);
        record.untried = true;
        bench b(record);
        REQUIRE(b.begin() == "get");
        CHECK(b.got(sandbox_state::failed) == "remove");
        CHECK(b.removed() == "save");
    }
}

TEST_CASE("bring up: one that has run is kept, whatever the platform calls it while it starts") {
    bench b(known_record(life_state::creating));
    REQUIRE(b.begin() == "get");
    CHECK(b.got(sandbox_state::creating) == "wait 100");
    REQUIRE(b.waited() == "get");
    CHECK(b.got(sandbox_state::failed) == "start");
    CHECK(b.record.sandbox_id == "sb_old");
}

TEST_CASE("bring up: once it was seen to have booted it is not new any more") {
    for (const life_state seen : {life_state::running, life_state::stopping, life_state::stopped}) {
        sandbox_record record = known_record(life_state::creating);
        record.untried = true;
        note_state(record, seen);
        CHECK_FALSE(record.untried);
    }
    sandbox_record record = known_record(life_state::creating);
    record.untried = true;
    note_state(record, life_state::starting);
    note_state(record, life_state::failed);
    CHECK(record.untried);
}

TEST_CASE("bring up: a stopped one-session sandbox is deleted, not resumed") {
    bench b(known_record(life_state::stopped, false));
    REQUIRE(b.begin() == "get");
    CHECK(b.got(sandbox_state::stopped) == "remove");
    CHECK(b.fsm.doing() == "deleting a stopped one-session sandbox");
    CHECK(b.removed() == "save");
    REQUIRE(b.saved() == "create");
    REQUIRE(b.created("sb_new") == "save");
    REQUIRE(b.saved() == "get");
    REQUIRE(b.got(sandbox_state::running) == "save");
    REQUIRE(b.saved() == "done");
    CHECK(b.fsm.created());
    CHECK_FALSE(b.fsm.resumed());
    CHECK(b.fsm.state_lost()); // what was in it is gone, and whoever uses it should know
    CHECK(b.record.generation == 5);
}

TEST_CASE("bring up: what counts as another boot") {
    struct row {
        life_state before;
        std::vector<sandbox_state> looks;
        std::uint64_t generation;
    };
    const row rows[] = {
        {life_state::unknown, {sandbox_state::running}, 4}, // nothing says that it was not running
        {life_state::unknown, {sandbox_state::unknown, sandbox_state::running}, 4},
        {life_state::unknown, {sandbox_state::starting, sandbox_state::running}, 5},
        {life_state::unknown,
         {sandbox_state::stopping, sandbox_state::starting, sandbox_state::running},
         5},
        {life_state::stopped, {sandbox_state::running}, 5},
        {life_state::stopping, {sandbox_state::running}, 5},
        {life_state::starting, {sandbox_state::running}, 5},
        {life_state::creating, {sandbox_state::running}, 5},
        {life_state::failed, {sandbox_state::running}, 5},
        {life_state::stopped, {sandbox_state::unknown, sandbox_state::running}, 5},
    };
    for (const row& each : rows) {
        CAPTURE(to_string(each.before));
        CAPTURE(each.looks.size());
        bench b(known_record(each.before));
        std::string answer = b.begin();
        for (const sandbox_state look : each.looks) {
            if (answer.starts_with("wait")) answer = b.waited();
            REQUIRE(answer == "get");
            answer = b.got(look);
        }
        REQUIRE(answer == "save");
        CHECK(b.saved() == "done");
        CHECK(b.record.generation == each.generation);
    }
}

TEST_CASE("bring up: a state nobody knows is waited for like a boot") {
    bench b(known_record(life_state::unknown));
    REQUIRE(b.begin() == "get");
    REQUIRE(b.got(sandbox_state::unknown) == "wait 100");
    CHECK(b.wait_while(sandbox_state::unknown) == "start");
    REQUIRE(b.started() == "wait 100");
    CHECK(b.wait_while(sandbox_state::unknown) == "fail boot_failed");
}
