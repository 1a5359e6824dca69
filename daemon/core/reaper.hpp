// Which sandboxes have been idle for long enough to be stopped, which must be asked first whether
// something works there in the background, and when to look again.
#pragma once

#include "core/background.hpp"
#include "core/sandbox_record.hpp"

#include <chrono>
#include <optional>
#include <vector>

namespace sandboxd::core {

struct reap_limits {
    std::chrono::milliseconds idle_stop{300'000};
    // So long after its last use background work alone keeps a sandbox.
    std::chrono::milliseconds background_max{1'800'000};
    std::chrono::milliseconds ask_again{60'000}; // an answer is good for so long
    // On its way up or down with nobody waiting for it: so long after its last use it is told to
    // stop once more, whatever idle_stop says.
    std::chrono::milliseconds on_its_way{120'000};
};

struct reap_candidate {
    sandbox_key key;
    life_state state = life_state::unknown;
    bool in_use = false; // a command runs or is about to, or a life-cycle operation is under way
    // Since the last use ended, on a clock that stands still while nobody could reach us.
    std::chrono::milliseconds idle_for{0};
    background work = background::not_asked;            // as told since the last use
    std::chrono::milliseconds told_ago{0};              // when that was
    std::optional<std::chrono::milliseconds> idle_stop; // its own, in the place of the limit
};

struct reap_plan {
    std::vector<sandbox_key> stop;
    std::vector<sandbox_key> ask;
    std::optional<std::chrono::milliseconds> look_again_in; // nothing: only when something changes
};

// `idle_stop` zero: never stop what runs.
reap_plan plan_reaping(const std::vector<reap_candidate>& candidates, const reap_limits& limits);

} // namespace sandboxd::core
