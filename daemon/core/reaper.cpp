#include "core/reaper.hpp"

#include <algorithm>

namespace sandboxd::core {

reap_plan plan_reaping(const std::vector<reap_candidate>& candidates, const reap_limits& limits) {
    reap_plan plan;
    const auto look_in = [&plan](std::chrono::milliseconds rest) {
        plan.look_again_in = plan.look_again_in ? std::min(*plan.look_again_in, rest) : rest;
    };
    for (const reap_candidate& each : candidates) {
        if (each.in_use) {
            continue;
        }
        if (is_on_its_way(each.state)) {
            if (each.idle_for >= limits.on_its_way) {
                plan.stop.push_back(each.key);
            } else {
                look_in(limits.on_its_way - each.idle_for);
            }
            continue;
        }
        const std::chrono::milliseconds idle_stop = each.idle_stop.value_or(limits.idle_stop);
        if (each.state != life_state::running || idle_stop == idle_stop.zero()) {
            continue;
        }
        if (each.idle_for < idle_stop) {
            look_in(idle_stop - each.idle_for);
            continue;
        }
        switch (each.work) {
        case background::not_asked:
            plan.ask.push_back(each.key);
            break;
        case background::none:
        case background::unknown:
            plan.stop.push_back(each.key);
            break;
        case background::running:
        case background::failed:
            // What got no answer may be at work: it has the same time, and no more.
            if (each.idle_for >= std::max(idle_stop, limits.background_max)) {
                plan.stop.push_back(each.key);
            } else if (each.told_ago >= limits.ask_again) {
                plan.ask.push_back(each.key);
            } else {
                look_in(std::min(limits.background_max - each.idle_for,
                                 limits.ask_again - each.told_ago));
            }
            break;
        }
    }
    return plan;
}

} // namespace sandboxd::core
