// What the deep_sands API speaks of, as plain values. Unknown fields of an answer are ignored and
// missing ones keep the defaults given here (S: official SDK).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace sandboxd::cloud {

// States the API is known to report (S); anything else becomes `unknown`.
enum class sandbox_state {
    creating,
    starting,
    running,
    stopping,
    stopped,
    failed,
    deleted,
    unknown
};

struct sandbox_info {
    std::string id;
    std::string plan;
    sandbox_state state = sandbox_state::unknown;
    std::map<std::string, std::string> tags;
    std::int64_t created_at = 0; // unix seconds; 0 if missing
};

// Nothing: the platform did not say.
struct plan_info {
    std::string id;
    std::optional<double> vcpu;
    std::optional<double> ram_gb;
    std::optional<double> disk_gb;
    std::optional<double> price_per_hour; // US dollars
};

struct create_request {
    std::string plan; // empty: the server's default
    std::map<std::string, std::string> tags;
    std::chrono::seconds timeout{0}; // idle time-out kept by the server; 0: the server's default
};

} // namespace sandboxd::cloud
