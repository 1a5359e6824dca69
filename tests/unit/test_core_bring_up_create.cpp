// Bringing a sandbox up that does not exist yet: the intent, the create, and what becomes of one
// whose answer is lost.
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

TEST_CASE("bring up: what is known to run needs no request") {
    bench b(known_record(life_state::running));
    CHECK(b.begin() == "done");
    CHECK_FALSE(b.fsm.created());
    CHECK_FALSE(b.fsm.resumed());
    CHECK_FALSE(b.fsm.state_lost());
    CHECK(b.record.generation == 4);
}

TEST_CASE("bring up: a first sandbox, step by step") {
    bench b;
    CHECK(b.begin() == "save"); // the intent, before anything is sent
    CHECK(b.record.create_pending);
    CHECK(b.record.creation_id == "seed-1");
    CHECK(b.record.attempt == 1);
    CHECK(b.record.state == life_state::creating);
    CHECK(b.record.sandbox_id.empty());
    CHECK(b.saved() == "create");
    CHECK(b.fsm.doing() == "creating the sandbox");
    CHECK(b.created("sb_1") == "save");
    CHECK_FALSE(b.record.create_pending);
    CHECK(b.record.sandbox_id == "sb_1");
    CHECK(b.saved() == "get");
    CHECK(b.fsm.doing() == "waiting for the new sandbox to boot");
    CHECK(b.got(sandbox_state::creating) == "wait 100");
    CHECK(b.record.created_at == 1000);
    CHECK(b.waited() == "get");
    CHECK(b.got(sandbox_state::starting) == "wait 150");
    CHECK(b.record.state == life_state::starting);
    CHECK(b.waited() == "get");
    CHECK(b.record.generation == 0);
    CHECK(b.got(sandbox_state::running) == "save");
    CHECK(b.record.state == life_state::running);
    CHECK(b.record.generation == 1);
    CHECK(b.saved() == "done");
    CHECK(b.fsm.created());
    CHECK_FALSE(b.fsm.resumed());
    CHECK_FALSE(b.fsm.state_lost());
}

TEST_CASE("bring up: where none is to be made, one that is gone stays gone") {
    bring_up_limits limits;
    limits.creates = 0;
    SUBCASE("a lasting one") {
        bench b(known_record(life_state::unknown), limits);
        CHECK(b.begin() == "get");
        CHECK(b.get_failed(kind::not_found) == "list");
        CHECK(b.listed({}) == "fail sandbox_gone");
        CHECK(b.last.error.value().sandbox_id == "sb_old");
        CHECK(b.record.state == life_state::absent);
        CHECK(b.record.sandbox_id.empty());
        CHECK(b.record.state_lost); // whoever comes next is told
    }
    SUBCASE("one of a session, which is never resumed") {
        bench b(known_record(life_state::unknown, false), limits);
        CHECK(b.begin() == "get");
        CHECK(b.got(sandbox_state::stopped) == "remove");
        CHECK(b.removed() == "fail sandbox_gone");
        CHECK(b.record.state == life_state::absent);
    }
    SUBCASE("one that is there is started") {
        bench b(known_record(life_state::stopped), limits);
        CHECK(b.begin() == "get");
        CHECK(b.got(sandbox_state::stopped) == "start");
        CHECK(b.started() == "wait 100");
    }
    SUBCASE("one whose create was in doubt is looked for, and the intent stays open") {
        bench b(pending_record(), limits);
        CHECK(b.begin() == "list");
        CHECK(b.listed({}).starts_with("wait"));
        CHECK(b.waited() == "list");
        CHECK(b.listed({}) == "fail sandbox_not_found");
        CHECK(b.record.create_pending);
    }
}

TEST_CASE("bring up: polling gets rarer, up to two seconds") {
    bench b;
    b.create("sb_1");
    const char* const waits[] = {"wait 100", "wait 150",  "wait 225",  "wait 337",  "wait 505",
                                 "wait 757", "wait 1135", "wait 1702", "wait 2000", "wait 2000"};
    for (const char* expected : waits) {
        CHECK(b.got(sandbox_state::creating) == expected);
        CHECK(b.waited() == "get");
    }
}

TEST_CASE("bring up: no create before its intent is on disk") {
    bench b;
    REQUIRE(b.begin() == "save");
    CHECK(b.save_failed() == "fail internal_error");
    CHECK_FALSE(b.record.create_pending);
    CHECK(b.record.state == life_state::absent);
    CHECK_FALSE(b.last.error->hint().empty());
    CHECK(std::string(b.last.error->what()).find("disk full") != std::string::npos);
}

TEST_CASE("bring up: a save that only speeds up the next start may fail") {
    bench b;
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    REQUIRE(b.created("sb_1") == "save");
    CHECK(b.save_failed() == "get");
    CHECK(b.record.sandbox_id == "sb_1");
    REQUIRE(b.got(sandbox_state::running) == "save");
    CHECK(b.save_failed() == "done");
    CHECK(b.record.state == life_state::running);
}

TEST_CASE("bring up: how a create can fail") {
    const std::map<std::string_view, std::string> expected{
        {"unreachable", "wait 500"},
        {"interrupted", "list"},
        {"unauthorized", "fail unauthorized"},
        {"forbidden", "fail unauthorized"},
        {"not_found", "fail cloud_error"},
        {"not_found_unproven", "fail cloud_error"},
        {"conflict", "fail cloud_error"},
        {"too_large", "fail cloud_error"},
        {"bad_request", "fail cloud_error"},
        {"cap_reached", "queue"},
        {"rate_limited", "queue"},
        {"no_capacity", "list"},
        {"server_error", "list"},
        {"bad_answer", "list"}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b;
        REQUIRE(b.begin() == "save");
        REQUIRE(b.saved() == "create");
        b.crowded = true;
        CHECK(b.create_failed(each.kind) == expected.at(each.name));
        const bool ended = b.last.what == action::fail || b.last.what == action::queue;
        CHECK(b.record.create_pending == !ended);
        CHECK(b.record.state == (ended ? life_state::absent : life_state::creating));
        if (b.last.what == action::wait) {
            CHECK(b.waited() == "create"); // the same attempt: nothing was made
            CHECK(b.record.attempt == 1);
        }
    }
}

TEST_CASE("bring up: a refused plan is named") {
    bench b;
    b.record.plan = "huge";
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    CHECK(b.create_failed(kind::bad_request) == "fail unknown_plan");
    CHECK(std::string(b.last.error->what()).find("'huge'") != std::string::npos);
}

TEST_CASE("bring up: creates that were certainly not taken are repeated for a while") {
    bench b;
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    for (const char* expected : {"wait 500", "wait 1000", "wait 2000", "wait 4000", "wait 8000",
                                 "wait 10000", "wait 10000", "wait 10000"}) {
        CHECK(b.create_failed(kind::unreachable) == expected);
        REQUIRE(b.waited() == "create");
    }
    CHECK(b.now >= milliseconds(45'000));
    CHECK(b.create_failed(kind::unreachable) == "fail cloud_unreachable");
    CHECK_FALSE(b.record.create_pending);
    CHECK(b.record.state == life_state::absent);
}

TEST_CASE("bring up: Retry-After is honoured, and never shortens the pause") {
    bench b;
    b.create("sb_1");
    CHECK(b.note(b.fsm.on_get(b.now, failure_of(kind::rate_limited, std::chrono::seconds(20)))) ==
          "wait 20000");
    REQUIRE(b.waited() == "get");
    CHECK(b.note(b.fsm.on_get(b.now, failure_of(kind::rate_limited, std::chrono::seconds(0)))) ==
          "wait 1000");
    REQUIRE(b.waited() == "get");
    // But nobody sits out an hour.
    CHECK(b.note(b.fsm.on_get(b.now, failure_of(kind::rate_limited, std::chrono::hours(1)))) ==
          "fail rate_limited");
}

TEST_CASE("bring up: a create whose answer was lost is found by its tag") {
    for (const kind why :
         {kind::interrupted, kind::server_error, kind::bad_answer, kind::no_capacity}) {
        bench b;
        b.lose_create(why);
        CHECK(b.fsm.doing() == "looking for the sandbox of a create whose answer was lost");
        CHECK(b.listed({shown("sb_other", sandbox_state::running),
                        shown("sb_1", sandbox_state::creating, b.our_tags())}) == "save");
        CHECK(b.record.sandbox_id == "sb_1");
        CHECK(b.record.created_at == 1000);
        CHECK_FALSE(b.record.create_pending);
        CHECK(b.saved() == "get");
        REQUIRE(b.got(sandbox_state::running) == "save");
        CHECK(b.saved() == "done");
        CHECK(b.fsm.created());
        CHECK(b.record.generation == 1);
    }
}

TEST_CASE("bring up: only what is provably of this create is taken") {
    const auto changed = [](strings tags, std::string_view name, const std::string& value) {
        tags[std::string(name)] = value;
        return tags;
    };
    bench b;
    b.lose_create();
    const strings ours = b.our_tags();
    strings untagged = ours;
    untagged.erase(std::string(tag::instance));
    CHECK(
        b.listed({shown("a", sandbox_state::running, changed(ours, tag::owner, "somebody")),
                  shown("b", sandbox_state::running, changed(ours, tag::instance, "other")),
                  shown("c", sandbox_state::running, changed(ours, tag::creation, "seed-2.1")),
                  shown("d", sandbox_state::running, changed(ours, tag::creation, "seed-11.1")),
                  shown("e", sandbox_state::running, untagged), shown("f", sandbox_state::running),
                  shown("g", sandbox_state::deleted, ours)}) == "wait 10000");
    CHECK(b.record.sandbox_id.empty());
    CHECK(b.record.create_pending);
}

TEST_CASE("bring up: absent in two listings ten seconds apart is a new attempt") {
    bench b;
    b.lose_create();
    CHECK(b.listed({}) == "wait 10000");
    CHECK(b.waited() == "list");
    CHECK(b.listed({}) == "save"); // the new attempt is an intent of its own
    CHECK(b.record.create_pending);
    CHECK(b.record.creation_id == "seed-1");
    CHECK(b.record.attempt == 2);
    CHECK(b.saved() == "create");
    CHECK(b.our_tags().at(std::string(tag::creation)) == "seed-1.2");

    SUBCASE("which succeeds") {
        CHECK(b.created("sb_2") == "save");
        CHECK(b.record.sandbox_id == "sb_2");
    }
    SUBCASE("which is lost too, and the first one turns up") {
        CHECK(b.create_failed(kind::server_error) == "list");
        strings first = b.our_tags();
        first[std::string(tag::creation)] = "seed-1.1";
        CHECK(b.listed({shown("sb_1", sandbox_state::running, first)}) == "save");
        CHECK(b.record.sandbox_id == "sb_1");
    }
    SUBCASE("which is lost and absent too: that is the last, and the intent stays open") {
        CHECK(b.create_failed(kind::server_error) == "list");
        CHECK(b.listed({}) == "wait 10000");
        CHECK(b.waited() == "list");
        CHECK(b.listed({}) == "fail outcome_unknown");
        CHECK(b.record.create_pending);
        CHECK(b.record.attempt == 2);
    }
    SUBCASE("whose intent cannot be written") {
        bench c;
        c.lose_create();
        REQUIRE(c.listed({}) == "wait 10000");
        REQUIRE(c.waited() == "list");
        REQUIRE(c.listed({}) == "save");
        CHECK(c.save_failed() == "fail internal_error");
    }
}

TEST_CASE("bring up: found in the second listing") {
    bench b;
    b.lose_create();
    REQUIRE(b.listed({}) == "wait 10000");
    REQUIRE(b.waited() == "list");
    CHECK(b.listed({shown("sb_1", sandbox_state::starting, b.our_tags())}) == "save");
    CHECK(b.record.attempt == 1);
}

TEST_CASE("bring up: a listing that fails proves nothing") {
    const std::map<std::string_view, std::string> expected{
        {"unreachable", "wait 500"},           {"interrupted", "wait 500"},
        {"unauthorized", "fail unauthorized"}, {"forbidden", "fail unauthorized"},
        {"not_found", "fail cloud_error"},     {"not_found_unproven", "wait 500"},
        {"conflict", "fail cloud_error"},      {"too_large", "fail cloud_error"},
        {"bad_request", "fail cloud_error"},   {"cap_reached", "fail rate_limited"},
        {"rate_limited", "wait 500"},          {"no_capacity", "wait 500"},
        {"server_error", "wait 500"},          {"bad_answer", "wait 500"}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b;
        b.lose_create();
        CHECK(b.list_failed(each.kind) == expected.at(each.name));
        CHECK(b.record.create_pending); // in every case
        if (b.last.what == action::wait) {
            CHECK(b.waited() == "list");
            CHECK(b.listed({}) == "wait 10000"); // still the first absence
            CHECK(b.waited() == "list");
            CHECK(b.list_failed(each.kind) == "wait 500");
            CHECK(b.waited() == "list");
            CHECK(b.listed({}) == "save");
        }

        bench gone(known_record(life_state::unknown));
        REQUIRE(gone.begin() == "get");
        REQUIRE(gone.get_failed(kind::not_found) == "list");
        CHECK(gone.list_failed(each.kind) == expected.at(each.name));
        CHECK(gone.record.sandbox_id == "sb_old"); // in every case
    }
}

TEST_CASE("bring up: listings that fail for long leave the intent open") {
    bench b;
    b.lose_create();
    std::string answer = b.list_failed(kind::server_error);
    while (answer.starts_with("wait")) {
        REQUIRE(b.waited() == "list");
        answer = b.list_failed(kind::server_error);
    }
    CHECK(answer == "fail cloud_error");
    CHECK(b.now >= milliseconds(45'000));
    CHECK(b.now < milliseconds(60'000));
    CHECK(b.record.create_pending);
}

TEST_CASE("bring up: without capacity and absent twice, nothing is made and that is said") {
    bench b;
    b.lose_create(kind::no_capacity);
    REQUIRE(b.listed({}) == "wait 10000");
    REQUIRE(b.waited() == "list");
    CHECK(b.listed({}) == "fail no_capacity");
    CHECK_FALSE(b.record.create_pending);
    CHECK(b.record.state == life_state::absent);
}

TEST_CASE("bring up: an intent found at the start is looked up before anything is sent") {
    bench b(pending_record());
    CHECK(b.begin() == "list");
    SUBCASE("it had been made") {
        CHECK(b.listed({shown("sb_1", sandbox_state::running, b.our_tags())}) == "save");
        CHECK(b.saved() == "get");
        CHECK(b.got(sandbox_state::running) == "save");
        CHECK(b.saved() == "done");
        CHECK(b.fsm.created());
    }
    SUBCASE("it had not") {
        CHECK(b.listed({}) == "wait 10000");
        CHECK(b.waited() == "list");
        CHECK(b.listed({}) == "save");
        CHECK(b.record.creation_id == "dead-1");
        CHECK(b.record.attempt == 2);
        CHECK(b.saved() == "create");
    }
}
