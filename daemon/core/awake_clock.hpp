// Counts only time in which this process could be reached, so that a machine that slept, a stopped
// process or a jumping clock never makes anything look idle.
//
// It must be looked at often while something may be idle: whatever passes between two looks beyond
// `tick` and some slack was not ours. Pure: `monotonic` is any clock that only goes forward.
#pragma once

#include "core/backoff.hpp"

#include <algorithm>

namespace sandboxd::core {

class awake_clock {
public:
    // `tick`: how often it is looked at.
    explicit constexpr awake_clock(milliseconds tick) noexcept : most_(tick + tick / 2) {}

    milliseconds now(milliseconds monotonic) noexcept {
        counted_ += std::clamp(monotonic - seen_, milliseconds(0), most_);
        seen_ = std::max(seen_, monotonic);
        return counted_;
    }

private:
    milliseconds most_;
    milliseconds counted_{0};
    milliseconds seen_{0};
};

} // namespace sandboxd::core
