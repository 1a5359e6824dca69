// How long to wait before asking again.
#pragma once

#include <chrono>

namespace sandboxd::core {

using milliseconds = std::chrono::milliseconds;

// Grows from `initial` by `factor` to `maximum`; a machine that was told nothing new asks ever more
// rarely.
class backoff {
public:
    constexpr backoff(milliseconds initial, milliseconds maximum, double factor = 2.0) noexcept
        : initial_(initial), maximum_(maximum), factor_(factor), next_(initial) {}

    // The next delay.
    milliseconds next() noexcept;
    void reset() noexcept { next_ = initial_; }

private:
    milliseconds initial_;
    milliseconds maximum_;
    double factor_;
    milliseconds next_;
};

// `delay` times 0.75 to 1.25 as `jitter` goes from 0 to 1.
milliseconds jittered(milliseconds delay, double jitter) noexcept;
// At least `asked`, up to a quarter more: several who were told the same do not come back at once.
milliseconds not_before(milliseconds asked, double jitter) noexcept;

} // namespace sandboxd::core
