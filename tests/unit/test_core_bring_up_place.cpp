// Places among the active sandboxes, as a bring-up sees them: asked for before every machine, lost
// by a 429, and what is remembered of creations in doubt.
#include "bring_up_bench.hpp"

using namespace sandboxd;
using namespace sandboxd::test;
using bench = bring_up_bench;
using action = bring_up_fsm::action;
using kind = cloud::failure_kind;

TEST_CASE("place: a new sandbox asks for one before anything is written or sent") {
    bench b;
    b.crowded = true;
    CHECK(b.begin() == "queue");
    CHECK_FALSE(b.fsm.place_refused());
    CHECK_FALSE(b.record.create_pending);
    CHECK(b.record.state == life_state::absent);
    CHECK(b.placed() == "save");
    CHECK(b.record.create_pending);
    CHECK(b.saved() == "create");
    CHECK_FALSE(b.fsm.place_taken());
    CHECK(b.created("sb_1") == "save");
    CHECK(b.fsm.place_taken());
}

TEST_CASE("place: a stopped one asks for one before it is started, what exists needs none") {
    bench b(known_record(life_state::stopped));
    b.crowded = true;
    REQUIRE(b.begin() == "get");
    CHECK(b.got(sandbox_state::stopped) == "queue");
    CHECK(b.placed() == "start");
    CHECK(b.started() == "wait 100");
    CHECK(b.fsm.place_taken());
    for (const sandbox_state state : {sandbox_state::running, sandbox_state::starting}) {
        bench up(known_record(life_state::unknown));
        up.crowded = true;
        REQUIRE(up.begin() == "get");
        CHECK(up.got(state) != "queue");
    }
}

TEST_CASE("place: none to be had leaves everything as it was") {
    bench fresh;
    fresh.crowded = true;
    REQUIRE(fresh.begin() == "queue");
    CHECK(fresh.note(fresh.fsm.on_no_place(fresh.now, {error_name::cap_reached, "full"})) ==
          "fail cap_reached");
    CHECK(fresh.record.state == life_state::absent);
    CHECK_FALSE(fresh.record.create_pending);

    bench old(known_record(life_state::stopped));
    old.crowded = true;
    REQUIRE(old.begin() == "get");
    REQUIRE(old.got(sandbox_state::stopped) == "queue");
    CHECK(old.note(old.fsm.on_no_place(old.now, {error_name::budget_reached, "spent"})) ==
          "fail budget_reached");
    CHECK(old.last.error->sandbox_id == "sb_old");
    CHECK(old.record.state == life_state::stopped);
}

TEST_CASE("place: refused by the platform it is asked for again, and the same request sent") {
    for (const kind why : {kind::cap_reached, kind::rate_limited}) {
        bench b;
        b.crowded = true;
        REQUIRE(b.begin() == "queue");
        REQUIRE(b.placed() == "save");
        REQUIRE(b.saved() == "create");
        const std::string creation = creation_tag(b.record);
        for (int i = 0; i < 20; ++i) { // however often
            CHECK(b.create_failed(why) == "queue");
            REQUIRE(b.fsm.place_refused());
            CHECK(b.fsm.place_refused()->kind == why);
            CHECK_FALSE(b.record.create_pending);
            CHECK(b.placed() == "save");
            CHECK(b.saved() == "create");
            CHECK(creation_tag(b.record) == creation);
        }
        CHECK(b.created("sb_1") == "save");
        CHECK(b.record.doubts.empty());
    }
    bench b(known_record(life_state::stopped));
    b.crowded = true;
    REQUIRE(b.begin() == "get");
    REQUIRE(b.got(sandbox_state::stopped) == "queue");
    REQUIRE(b.placed() == "start");
    CHECK(b.start_failed(kind::cap_reached) == "queue");
    b.now += milliseconds(1'000'000); // waiting for a place is no boot that hangs
    CHECK(b.placed() == "start");
    CHECK(b.started() == "wait 100");
}

TEST_CASE("place: what was not even sent is tried again without a new place") {
    bench b;
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    b.crowded = true;
    cloud::failure held = failure_of(kind::no_capacity, std::chrono::seconds(2));
    held.withheld = true;
    CHECK(b.note(b.fsm.on_create(b.now, held)) == "wait 2000");
    CHECK(b.waited() == "create");
    CHECK(b.record.doubts.empty());
}

TEST_CASE("place: it is kept from one attempt to the next, and for a sandbox in place of another") {
    bench b;
    b.lose_create();
    b.crowded = true;
    REQUIRE(b.listed({}) == "wait 10000");
    REQUIRE(b.waited() == "list");
    CHECK(b.listed({}) == "save"); // the second attempt
    CHECK(b.record.attempt == 2);

    bench failing;
    failing.create("sb_1");
    failing.crowded = true;
    CHECK(failing.got(sandbox_state::failed) == "remove");
    CHECK(failing.removed() == "save");
}

TEST_CASE(
    "doubt: a creation whose outcome is open is remembered until one request alone has made it") {
    bench b;
    b.lose_create();
    REQUIRE(b.record.doubts.size() == 1);
    CHECK(b.record.doubts[0].creation_id == b.record.creation_id);
    CHECK(b.listed({shown("sb_1", sandbox_state::creating, b.our_tags())}) == "save");
    CHECK(b.record.doubts.empty());

    bench twice;
    twice.lose_create();
    REQUIRE(twice.listed({}) == "wait 10000");
    REQUIRE(twice.waited() == "list");
    REQUIRE(twice.listed({}) == "save");
    REQUIRE(twice.saved() == "create");
    CHECK(twice.created("sb_2") == "save");
    CHECK(twice.record.doubts.size() == 1); // the first request may still take effect

    bench crashed(pending_record());
    REQUIRE(crashed.begin() == "list");
    CHECK(crashed.record.doubts.size() == 1);
}

TEST_CASE("loss: told by the bring-up after the one that found it, and by none after that") {
    sandbox_record record = new_record();
    record.generation = 3;
    record.state_lost = true; // an earlier daemon has found it gone
    bench b(record);
    b.create("sb_1");
    REQUIRE(b.got(sandbox_state::running) == "save");
    CHECK(b.saved() == "done");
    CHECK(b.fsm.state_lost());

    bench found(known_record(life_state::stopped));
    REQUIRE(found.begin() == "get");
    CHECK(found.got(sandbox_state::deleted) == "save");
    CHECK(found.record.state_lost); // should the daemon die now
    CHECK(found.fsm.state_lost());
}

// -- nobody asks for it any more

TEST_CASE("bring up: left while a create that was not sent is waited for, nothing stays open") {
    bench b;
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    REQUIRE(b.create_failed(kind::unreachable).starts_with("wait"));
    REQUIRE(b.fsm.may_be_abandoned());
    CHECK(b.note(b.fsm.on_abandoned()) == "fail cancelled");
    CHECK_FALSE(b.record.create_pending);
    CHECK(b.record.state == life_state::absent);
    CHECK(b.record.doubts.empty());
}

TEST_CASE("bring up: left while a create in doubt is looked for, the intent and its doubt stay") {
    bench b;
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    REQUIRE(b.create_failed(kind::interrupted) == "list");
    REQUIRE(b.listed({}) == "wait 10000");
    REQUIRE(b.fsm.may_be_abandoned());
    CHECK(b.note(b.fsm.on_abandoned()) == "fail cancelled");
    CHECK(b.record.create_pending);
    CHECK(b.record.doubts.size() == 1);
}

TEST_CASE("bring up: another account's key: what was not sent stays open nowhere, a doubt stays") {
    using to_do = bring_up_fsm::action;
    for (const to_do next : {to_do::save, to_do::create}) {
        bench b;
        REQUIRE(b.begin() == "save");
        if (next == to_do::create) {
            REQUIRE(b.saved() == "create");
        }
        CHECK(b.note(b.fsm.on_account_changed({next, milliseconds(0), {}})) ==
              "fail account_mismatch");
        CHECK_FALSE(b.record.create_pending);
        CHECK(b.record.doubts.empty());
    }
    bench b;
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    REQUIRE(b.create_failed(kind::interrupted) == "list");
    CHECK(b.note(b.fsm.on_account_changed({to_do::list, milliseconds(0), {}})) ==
          "fail account_mismatch");
    CHECK(b.record.create_pending);
    CHECK(b.record.doubts.size() == 1);
}

TEST_CASE("bring up: what boots is not left") {
    bench b;
    REQUIRE(b.begin() == "save");
    REQUIRE(b.saved() == "create");
    REQUIRE(b.created("sb_1") == "save");
    REQUIRE(b.saved() == "get");
    REQUIRE(b.got(sandbox_state::creating).starts_with("wait"));
    CHECK_FALSE(b.fsm.may_be_abandoned());
}

TEST_CASE("bring up: a second attempt that comes to nothing leaves the first one's doubt") {
    for (const std::string how : {"no place", "not written down", "refused", "left"}) {
        CAPTURE(how);
        bench b;
        REQUIRE(b.begin() == "save");
        REQUIRE(b.saved() == "create");
        const std::string creation = b.record.creation_id;
        REQUIRE(b.create_failed(kind::interrupted) == "list");
        REQUIRE(b.listed({}) == "wait 10000");
        REQUIRE(b.waited() == "list");
        REQUIRE(b.listed({}) == "save");
        if (how == "not written down") {
            CHECK(b.save_failed() == "fail internal_error");
        } else {
            REQUIRE(b.saved() == "create");
        }
        if (how == "refused") {
            CHECK(b.create_failed(kind::forbidden).starts_with("fail"));
        } else if (how == "left") {
            REQUIRE(b.create_failed(kind::unreachable).starts_with("wait"));
            CHECK(b.note(b.fsm.on_abandoned()) == "fail cancelled");
        } else if (how == "no place") {
            b.crowded = true;
            REQUIRE(b.create_failed(kind::cap_reached) == "queue");
            CHECK(b.note(b.fsm.on_no_place(b.now, {error_name::cap_reached, "full"})) ==
                  "fail cap_reached");
        }
        REQUIRE(b.record.doubts.size() == 1);
        CHECK(b.record.doubts[0].creation_id == creation);
    }
}
