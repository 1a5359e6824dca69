// The account's back-off: who is held back, for how long, and by what it ends.
#include "core/pacing.hpp"
#include "failures.hpp"

#include <doctest/doctest.h>

using namespace sandboxd;
using namespace sandboxd::core;
using ms = milliseconds;
using kind = cloud::failure_kind;
using purpose = pacing::purpose;
using test::failure_of;

TEST_CASE("pacing: what pauses what") {
    for (const auto& each : test::all_kinds) {
        CAPTURE(each.name);
        pacing pace;
        pace.on_failure(ms(0), failure_of(each.kind), 0.5);
        if (each.kind == kind::unauthorized) {
            CHECK_FALSE(pace.held_back(ms(0), purpose::anything)); // once may be a mistake
            pace.on_failure(ms(0), failure_of(each.kind), 0.5);
        }
        const bool all = each.kind == kind::rate_limited || each.kind == kind::unauthorized;
        CHECK(pace.held_back(ms(1), purpose::anything).has_value() == all);
        CHECK(pace.held_back(ms(1), purpose::a_machine).has_value() ==
              (all || each.kind == kind::no_capacity));
    }
}

TEST_CASE("pacing: what is held back is told why, for how long, and that it was not sent") {
    pacing pace;
    pace.on_failure(ms(0), failure_of(kind::rate_limited, std::chrono::seconds(4)), 0.0);
    const auto held = pace.held_back(ms(1'000), purpose::anything);
    REQUIRE(held);
    CHECK(held->kind == kind::rate_limited);
    CHECK(held->retry_after == ms(3'000));
    CHECK(held->withheld);
    pace.on_failure(ms(1'000), *held, 0.5); // our own word changes nothing
    CHECK_FALSE(pace.held_back(ms(4'000), purpose::anything));
    pacing machines;
    machines.on_failure(ms(0), failure_of(kind::no_capacity), 0.5);
    CHECK_FALSE(machines.held_back(ms(0), purpose::a_machine)->effect_unknown());
}

TEST_CASE("pacing: pauses grow in a row, are jittered, and a success ends the row") {
    pacing pace;
    ms now{0};
    for (const int expected : {500, 1'000, 2'000, 4'000}) {
        pace.on_failure(now, failure_of(kind::rate_limited), 0.5);
        CHECK(pace.held_back(now, purpose::anything)->retry_after == ms(expected));
        now += ms(expected);
        CHECK_FALSE(pace.held_back(now, purpose::anything));
    }
    pace.on_success(purpose::anything);
    pace.on_failure(now, failure_of(kind::rate_limited), 0.0);
    CHECK(pace.held_back(now, purpose::anything)->retry_after == ms(375));
}

TEST_CASE("pacing: what the platform asks for is waited for, and not by all to the same moment") {
    for (const auto& [jitter, expected] : {std::pair(0.0, 4'000), {0.5, 4'500}, {1.0, 5'000}}) {
        pacing pace;
        pace.on_failure(ms(0), failure_of(kind::rate_limited, std::chrono::seconds(4)), jitter);
        CHECK(pace.held_back(ms(0), purpose::anything)->retry_after == ms(expected));
    }
}

TEST_CASE("pacing: requests that were under way when the pause began do not lengthen the row") {
    pacing pace;
    for (int i = 0; i < 10; ++i) {
        pace.on_failure(ms(i), failure_of(kind::rate_limited), 0.5);
    }
    CHECK_FALSE(pace.held_back(ms(500), purpose::anything));
    pace.on_failure(ms(600), failure_of(kind::rate_limited), 0.5);
    pace.on_failure(ms(700), failure_of(kind::rate_limited, std::chrono::seconds(9)), 0.5);
    CHECK(pace.held_back(ms(9'699), purpose::anything));
}

TEST_CASE("pacing: a listing that works says nothing of machines") {
    pacing pace;
    pace.on_failure(ms(0), failure_of(kind::no_capacity), 0.5);
    pace.on_success(purpose::anything);
    CHECK(pace.held_back(ms(1), purpose::a_machine));
    pace.on_success(purpose::a_machine);
    CHECK_FALSE(pace.held_back(ms(1), purpose::a_machine));
}

TEST_CASE("pacing: a refused key is tried ever more rarely, and when there is another") {
    pacing pace;
    pace.on_failure(ms(0), failure_of(kind::unauthorized), 0.5);
    ms now{0};
    for (const int expected : {2'000, 4'000, 8'000, 16'000}) {
        pace.on_failure(now, failure_of(kind::unauthorized), 0.5);
        const auto held = pace.held_back(now, purpose::anything);
        REQUIRE(held);
        CHECK(held->kind == kind::unauthorized);
        CHECK(held->retry_after == ms(expected));
        now += ms(expected);
        CHECK_FALSE(pace.held_back(now, purpose::anything));
    }
    pace.on_failure(now, failure_of(kind::unauthorized), 0.5);
    CHECK(pace.held_back(now, purpose::anything));
    pace.on_new_key();
    CHECK_FALSE(pace.held_back(now, purpose::anything));
}
