// Who is stopped for being idle, who is asked first, and when to look again.
#include "core/awake_clock.hpp"
#include "core/reaper.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::core;
using std::chrono::milliseconds;

namespace {

constexpr reap_limits limits{milliseconds(1'000), milliseconds(6'000), milliseconds(500)};

reap_candidate candidate(std::string task, milliseconds idle_for,
                         background work = background::none, life_state state = life_state::running,
                         bool in_use = false) {
    return {{"p", std::move(task)}, state, in_use, idle_for, work, milliseconds(0), {}};
}

} // namespace

TEST_CASE("reaper: nothing to look after") {
    const reap_plan plan = plan_reaping({}, limits);
    CHECK(plan.stop.empty());
    CHECK_FALSE(plan.look_again_in);
}

TEST_CASE("reaper: idle for long enough is stopped, the rest is looked at in time") {
    const reap_plan plan =
        plan_reaping({candidate("a", milliseconds(1'000)), candidate("b", milliseconds(999)),
                      candidate("c", milliseconds(400)), candidate("d", milliseconds(5'000))},
                     limits);
    REQUIRE(plan.stop.size() == 2);
    CHECK(plan.stop[0].task == "a");
    CHECK(plan.stop[1].task == "d");
    CHECK(plan.look_again_in == milliseconds(1));
}

TEST_CASE("reaper: a time of its own counts in the place of the limit") {
    reap_candidate sooner = candidate("a", milliseconds(500));
    sooner.idle_stop = milliseconds(500);
    reap_candidate later = candidate("b", milliseconds(7'000));
    later.idle_stop = milliseconds(9'000);
    // Longer than background work may keep one.
    reap_candidate busy = candidate("c", milliseconds(8'999), background::running);
    busy.idle_stop = milliseconds(9'000);
    reap_plan plan = plan_reaping({sooner, later, busy}, limits);
    REQUIRE(plan.stop.size() == 1);
    CHECK(plan.stop[0].task == "a");
    CHECK(plan.look_again_in == milliseconds(1));
    later.idle_for = busy.idle_for = milliseconds(9'000);
    plan = plan_reaping({later, busy}, limits);
    CHECK(plan.stop.size() == 2);
}

TEST_CASE("reaper: what is in use is never stopped and needs no look") {
    const reap_plan plan = plan_reaping(
        {candidate("a", milliseconds(1'000'000), background::none, life_state::running, true)},
        limits);
    CHECK(plan.stop.empty());
    CHECK_FALSE(plan.look_again_in);
}

TEST_CASE("reaper: only what runs is stopped") {
    for (const life_state state :
         {life_state::absent, life_state::stopped, life_state::failed, life_state::unknown}) {
        const reap_plan plan = plan_reaping(
            {candidate("a", milliseconds(1'000'000), background::none, state)}, limits);
        CHECK(plan.stop.empty());
        CHECK(plan.ask.empty());
        CHECK_FALSE(plan.look_again_in);
    }
}

TEST_CASE(
    "reaper: what is on its way with nobody waiting is told to stop when that takes too long") {
    for (const life_state state :
         {life_state::creating, life_state::starting, life_state::stopping}) {
        for (const milliseconds idle_stop : {milliseconds(0), milliseconds(1'000)}) {
            const reap_limits its{idle_stop};
            const auto plan = [&](milliseconds idle_for, bool in_use = false) {
                return plan_reaping({candidate("a", idle_for, background::none, state, in_use)},
                                    its);
            };
            CHECK(plan(milliseconds(119'000)).stop.empty());
            CHECK(plan(milliseconds(119'000)).look_again_in == milliseconds(1'000));
            CHECK(plan(milliseconds(120'000)).stop.size() == 1);
            CHECK(plan(milliseconds(500'000), true).stop.empty());
        }
    }
}

TEST_CASE("reaper: zero means never") {
    const reap_plan plan =
        plan_reaping({candidate("a", milliseconds(1'000'000))}, {milliseconds(0)});
    CHECK(plan.stop.empty());
    CHECK_FALSE(plan.look_again_in);
}

TEST_CASE("reaper: nothing is stopped before it was asked what it does in the background") {
    CHECK(plan_reaping({candidate("a", milliseconds(999), background::not_asked)}, limits)
              .ask.empty());
    const reap_plan plan =
        plan_reaping({candidate("a", milliseconds(1'000), background::not_asked)}, limits);
    REQUIRE(plan.ask.size() == 1);
    CHECK(plan.stop.empty());
    CHECK_FALSE(plan.look_again_in); // the answer wakes
}

TEST_CASE("reaper: background work, and silence, keep it for a while and are asked again") {
    for (const background work : {background::running, background::failed}) {
        reap_candidate each = candidate("a", milliseconds(2'000), work);
        each.told_ago = milliseconds(200);
        reap_plan plan = plan_reaping({each}, limits);
        CHECK(plan.stop.empty());
        CHECK(plan.ask.empty());
        CHECK(plan.look_again_in == milliseconds(300));
        each.told_ago = milliseconds(500);
        CHECK(plan_reaping({each}, limits).ask.size() == 1);
        each.idle_for = milliseconds(5'900);
        each.told_ago = milliseconds(0);
        CHECK(plan_reaping({each}, limits).look_again_in == milliseconds(100));
        each.idle_for = milliseconds(6'000);
        CHECK(plan_reaping({each}, limits).stop.size() == 1);
    }
}

TEST_CASE("reaper: a background limit below the idle limit shortens nothing") {
    const reap_limits odd{milliseconds(1'000), milliseconds(0), milliseconds(500)};
    CHECK(plan_reaping({candidate("a", milliseconds(999), background::running)}, odd).stop.empty());
    CHECK(
        plan_reaping({candidate("a", milliseconds(1'000), background::running)}, odd).stop.size() ==
        1);
}

TEST_CASE("reaper: where nobody can tell it is stopped as if nothing ran") {
    CHECK(plan_reaping({candidate("a", milliseconds(1'000), background::unknown)}, limits)
              .stop.size() == 1);
}

TEST_CASE("awake clock: what passes while nobody could reach us does not count") {
    awake_clock clock(milliseconds(100));
    const milliseconds start = clock.now(milliseconds(1'000'000));
    CHECK(clock.now(milliseconds(1'000'090)) - start == milliseconds(90));
    CHECK(clock.now(milliseconds(1'000'190)) - start == milliseconds(190));
    CHECK(clock.now(milliseconds(9'000'000)) - start == milliseconds(190 + 150)); // slept
    CHECK(clock.now(milliseconds(8'000'000)) - start == milliseconds(190 + 150)); // jumped back
    CHECK(clock.now(milliseconds(9'000'010)) - start == milliseconds(190 + 160));
}
