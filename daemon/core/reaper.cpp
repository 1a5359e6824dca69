#include "core/reaper.hpp"

#include <algorithm>

namespace sandboxd::core {

reap_plan plan_reaping(const std::vector<reap_candidate>& candidates,
                       std::chrono::milliseconds idle_stop) {
    reap_plan plan;
    if (idle_stop == std::chrono::milliseconds::zero()) {
        return plan;
    }
    for (const reap_candidate& each : candidates) {
        if (each.state != life_state::running || each.in_use) {
            continue;
        }
        if (each.idle_for >= idle_stop) {
            plan.stop.push_back(each.key);
            continue;
        }
        const auto rest = idle_stop - each.idle_for;
        plan.look_again_in = plan.look_again_in ? std::min(*plan.look_again_in, rest) : rest;
    }
    return plan;
}

} // namespace sandboxd::core
