#include "core/shim_outcome.hpp"

#include <string_view>

namespace sandboxd::core {
namespace {

// As a shell tells a signal.
constexpr int signal_base = 128;

} // namespace

std::optional<exec_exit> told_end(const shim_note& note) {
    const std::string_view reason = note.text("reason");
    std::optional<int> code;
    if (const auto value = note.number("code"); value && *value <= 255) {
        code = static_cast<int>(*value);
    } else if (const auto signal = note.number("signal"); signal && *signal <= 127) {
        code = signal_base + static_cast<int>(*signal);
    }
    exec_exit exit;
    if (reason == "exited" && code) {
        exit.reason = exit_reason::exited;
        exit.returncode = code;
        exit.ran = started::yes;
    } else if (reason == "timed_out") {
        exit.reason = exit_reason::timed_out;
        exit.returncode = timed_out_code;
    } else if (reason == "cancelled") {
        exit.reason = exit_reason::cancelled;
        exit.returncode = cancelled_code;
    } else {
        return std::nullopt;
    }
    // Of its follower and of `ps`.
    exit.background =
        note.number("background").value_or(0) != 0 || note.number("descendants").value_or(0) != 0;
    return exit;
}

void shim_outcome::take(const shim_frame& frame) {
    const auto* note = std::get_if<shim_note>(&frame);
    if (note == nullptr || note->name != "exec" || note->text("id") != exec_id_) {
        return;
    }
    exit_ = told_end(*note);
    // One that was cancelled before its start has neither: its start is told by its own follower.
    const bool begun = note->number("code") || note->number("signal");
    if (exit_ && begun) {
        exit_->ran = started::yes;
    }
}

} // namespace sandboxd::core
