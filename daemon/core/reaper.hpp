// Which sandboxes have been idle for long enough to be stopped, and when to look again.
#pragma once

#include "core/sandbox_record.hpp"

#include <chrono>
#include <optional>
#include <vector>

namespace sandboxd::core {

struct reap_candidate {
    sandbox_key key;
    life_state state = life_state::unknown;
    bool in_use = false; // a command runs or is about to, or a life-cycle operation is under way
    // Since the last use ended, on a clock that stands still while the machine sleeps.
    std::chrono::milliseconds idle_for{0};
};

struct reap_plan {
    std::vector<sandbox_key> stop;
    std::optional<std::chrono::milliseconds> look_again_in; // nothing: only when something changes
};

// `idle_stop` zero: never stop anything.
reap_plan plan_reaping(const std::vector<reap_candidate>& candidates,
                       std::chrono::milliseconds idle_stop);

} // namespace sandboxd::core
