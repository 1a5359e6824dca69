#include "core/shim_background.hpp"

#include <algorithm>

namespace sandboxd::core {

std::vector<std::string> shim_ps(const std::string& shim) {
    return {shim, "ps"};
}

void shim_background::take(const shim_frame& frame) {
    const auto* note = std::get_if<shim_note>(&frame);
    if (note == nullptr || complete_) {
        return;
    }
    if (note->name == "done") {
        complete_ = true;
        return;
    }
    if (note->name != "exec") {
        return;
    }
    const std::string_view state = note->text("state");
    const std::uint64_t processes = note->number("descendants").value_or(0);
    if (state != "running" && state != "draining" && processes == 0) {
        return; // ended, or a claim without a runner
    }
    ++tasks_;
    if (shown_.size() < most_shown) {
        shown_.push_back({std::string(note->text("id")), std::max<std::uint64_t>(processes, 1),
                          note->number("age_ms").value_or(0)});
    }
}

std::string shim_background::text() const {
    std::string text;
    for (const task& each : shown_) {
        text += (text.empty() ? "" : ", ") + std::to_string(each.processes) +
                (each.processes == 1 ? " process of " : " processes of ") + each.id + " (for " +
                std::to_string(each.age_ms / 1000) + " s)";
    }
    if (tasks_ > shown_.size()) {
        text += " and " + std::to_string(tasks_ - shown_.size()) + " more commands";
    }
    return text;
}

} // namespace sandboxd::core
