// How a command has ended, as its runner tells it: in the last frame of a follower, and, without
// the output in front of that, in `shim ps` (daemon/shim/frames.h is the specification). Pure.
#pragma once

#include "core/exec_fsm.hpp"
#include "core/shim_frames.hpp"

#include <optional>
#include <string>

namespace sandboxd::core {

// Of `reason`, `code` and `signal`. Nothing: it could not be started, has not ended, or this makes
// no sense.
std::optional<exec_exit> told_end(const shim_note& note);

// Finds one command in the answer of `ps`.
class shim_outcome {
public:
    explicit shim_outcome(std::string exec_id) : exec_id_(std::move(exec_id)) {}

    void take(const shim_frame& frame);
    const std::optional<exec_exit>& exit() const noexcept { return exit_; }

private:
    std::string exec_id_;
    std::optional<exec_exit> exit_;
};

} // namespace sandboxd::core
