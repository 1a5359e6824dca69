// Who is stopped for being idle, and when to look again.
#include "core/reaper.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::core;
using std::chrono::milliseconds;

namespace {

reap_candidate candidate(std::string task, milliseconds idle_for,
                         life_state state = life_state::running, bool in_use = false) {
    return {{"p", std::move(task)}, state, in_use, idle_for};
}

} // namespace

TEST_CASE("reaper: nothing to look after") {
    const reap_plan plan = plan_reaping({}, milliseconds(1'000));
    CHECK(plan.stop.empty());
    CHECK_FALSE(plan.look_again_in);
}

TEST_CASE("reaper: idle for long enough is stopped, the rest is looked at in time") {
    const reap_plan plan =
        plan_reaping({candidate("a", milliseconds(1'000)), candidate("b", milliseconds(999)),
                      candidate("c", milliseconds(400)), candidate("d", milliseconds(5'000))},
                     milliseconds(1'000));
    REQUIRE(plan.stop.size() == 2);
    CHECK(plan.stop[0].task == "a");
    CHECK(plan.stop[1].task == "d");
    CHECK(plan.look_again_in == milliseconds(1));
}

TEST_CASE("reaper: what is in use is never stopped and needs no look") {
    const reap_plan plan = plan_reaping(
        {candidate("a", milliseconds(1'000'000), life_state::running, true)}, milliseconds(1'000));
    CHECK(plan.stop.empty());
    CHECK_FALSE(plan.look_again_in);
}

TEST_CASE("reaper: only what runs is stopped") {
    for (const life_state state :
         {life_state::absent, life_state::creating, life_state::starting, life_state::stopping,
          life_state::stopped, life_state::failed, life_state::unknown}) {
        const reap_plan plan =
            plan_reaping({candidate("a", milliseconds(1'000'000), state)}, milliseconds(1'000));
        CHECK(plan.stop.empty());
        CHECK_FALSE(plan.look_again_in);
    }
}

TEST_CASE("reaper: zero means never") {
    const reap_plan plan = plan_reaping({candidate("a", milliseconds(1'000'000))}, milliseconds(0));
    CHECK(plan.stop.empty());
    CHECK_FALSE(plan.look_again_in);
}
