// What `shim ps` tells of work in the background (daemon/shim/frames.h is the specification).
//
// Every byte comes from where untrusted code runs: names are bounded by the parser, few are shown,
// and a lie there costs its owner money, not us. Pure.
#pragma once

#include "core/background.hpp"
#include "core/shim_frames.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace sandboxd::core {

std::vector<std::string> shim_ps(const std::string& shim);

class shim_background {
public:
    void take(const shim_frame& frame);
    bool complete() const noexcept { return complete_; }
    // Once complete: none or running.
    background what() const noexcept {
        return tasks_ == 0 ? background::none : background::running;
    }
    // For people; empty when nothing runs: "3 processes of 0f3c9a52-build (for 125 s)".
    std::string text() const;

private:
    struct task {
        std::string id;
        std::uint64_t processes = 0;
        std::uint64_t age_ms = 0;
    };

    static constexpr std::size_t most_shown = 3;

    std::vector<task> shown_; // the first few
    std::uint64_t tasks_ = 0;
    bool complete_ = false;
};

} // namespace sandboxd::core
