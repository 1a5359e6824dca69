// What a failed request is called towards the user, and which failures are worth another try.
#include "core/backoff.hpp"
#include "core/cloud_error.hpp"
#include "failures.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

using namespace sandboxd;
using namespace sandboxd::core;
using kind = cloud::failure_kind;
using test::all_kinds;
using test::failure_of;

TEST_CASE("cloud error: each kind has its name and its chance") {
    struct row {
        error_name name;
        error_name plain;
        error_name machine;
        bool transient;
    };
    const std::map<std::string_view, row> expected{
        {"unreachable",
         {error_name::cloud_unreachable, error_name::cloud_unreachable,
          error_name::cloud_unreachable, true}},
        {"interrupted",
         {error_name::cloud_unreachable, error_name::cloud_unreachable,
          error_name::cloud_unreachable, true}},
        {"unauthorized",
         {error_name::unauthorized, error_name::unauthorized, error_name::unauthorized, false}},
        {"forbidden",
         {error_name::unauthorized, error_name::unauthorized, error_name::unauthorized, false}},
        {"not_found",
         {error_name::sandbox_gone, error_name::cloud_error, error_name::cloud_error, false}},
        {"not_found_unproven",
         {error_name::cloud_error, error_name::cloud_error, error_name::cloud_error, true}},
        {"conflict",
         {error_name::cloud_error, error_name::cloud_error, error_name::cloud_error, false}},
        {"too_large",
         {error_name::too_large, error_name::cloud_error, error_name::cloud_error, false}},
        {"bad_request",
         {error_name::cloud_error, error_name::cloud_error, error_name::cloud_error, false}},
        {"cap_reached",
         {error_name::cap_reached, error_name::rate_limited, error_name::cap_reached, false}},
        {"rate_limited",
         {error_name::rate_limited, error_name::rate_limited, error_name::rate_limited, true}},
        {"no_capacity",
         {error_name::no_capacity, error_name::cloud_error, error_name::no_capacity, true}},
        {"server_error",
         {error_name::cloud_error, error_name::cloud_error, error_name::cloud_error, true}},
        {"bad_answer",
         {error_name::cloud_error, error_name::cloud_error, error_name::cloud_error, true}}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        const cloud::failure failure = failure_of(each.kind);
        CHECK(error_from(failure, "x").name() == expected.at(each.name).name);
        CHECK(plain_error_from(failure, "x").name() == expected.at(each.name).plain);
        CHECK(machine_error_from(failure, "x").name() == expected.at(each.name).machine);
        CHECK(is_transient(failure) == expected.at(each.name).transient);
    }
}

TEST_CASE("cloud error: it says what was done and what came back") {
    const auto text = [](const cloud::failure& failure) {
        return std::string(error_from(failure, "creating the sandbox").what());
    };
    CHECK(text(failure_of(kind::server_error)) ==
          "while creating the sandbox, the platform answered 502: because");
    CHECK(text({kind::server_error, 502, "", {}}) ==
          "while creating the sandbox, the platform answered 502");
    CHECK(text(failure_of(kind::unreachable)) ==
          "while creating the sandbox, the platform could not be reached: because");
    CHECK(text(failure_of(kind::interrupted)) ==
          "while creating the sandbox, the platform did not answer: because");
    CHECK(std::string(plain_error_from(failure_of(kind::not_found), "listing").what()) ==
          "while listing, the platform answered 404: because");
}

TEST_CASE("cloud error: an effect is unknown after 5xx, a cut and nonsense, and only then") {
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        const bool open = each.kind == kind::interrupted || each.kind == kind::no_capacity ||
                          each.kind == kind::server_error || each.kind == kind::bad_answer;
        CHECK(failure_of(each.kind).effect_unknown() == open);
    }
}

TEST_CASE("backoff: grows to its maximum, and begins anew when told to") {
    backoff delays(milliseconds(100), milliseconds(1'000), 3.0);
    CHECK(delays.next() == milliseconds(100));
    CHECK(delays.next() == milliseconds(300));
    CHECK(delays.next() == milliseconds(900));
    CHECK(delays.next() == milliseconds(1'000));
    CHECK(delays.next() == milliseconds(1'000));
    delays.reset();
    CHECK(delays.next() == milliseconds(100));
}
