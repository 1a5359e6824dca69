// Every way a cloud request can fail, for tests that try each of them at each state of a machine.
#pragma once

#include "cloud/failure.hpp"

#include <array>
#include <chrono>
#include <optional>
#include <string_view>

namespace sandboxd::test {

struct kind_of_failure {
    cloud::failure_kind kind;
    std::string_view name;
    int status;
};

inline constexpr std::array<kind_of_failure, 14> all_kinds{{
    {cloud::failure_kind::unreachable, "unreachable", 0},
    {cloud::failure_kind::interrupted, "interrupted", 0},
    {cloud::failure_kind::unauthorized, "unauthorized", 401},
    {cloud::failure_kind::forbidden, "forbidden", 403},
    {cloud::failure_kind::not_found, "not_found", 404},
    {cloud::failure_kind::not_found_unproven, "not_found_unproven", 404},
    {cloud::failure_kind::conflict, "conflict", 409},
    {cloud::failure_kind::too_large, "too_large", 413},
    {cloud::failure_kind::bad_request, "bad_request", 400},
    {cloud::failure_kind::cap_reached, "cap_reached", 429},
    {cloud::failure_kind::rate_limited, "rate_limited", 429},
    {cloud::failure_kind::no_capacity, "no_capacity", 503},
    {cloud::failure_kind::server_error, "server_error", 502},
    {cloud::failure_kind::bad_answer, "bad_answer", 200},
}};

inline cloud::failure failure_of(cloud::failure_kind kind,
                                 std::optional<std::chrono::seconds> retry_after = {}) {
    for (const kind_of_failure& each : all_kinds) {
        if (each.kind == kind) return {kind, each.status, "because", retry_after};
    }
    return {kind, 0, "because", retry_after};
}

} // namespace sandboxd::test
