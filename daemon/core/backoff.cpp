#include "core/backoff.hpp"

#include <algorithm>

namespace sandboxd::core {

milliseconds backoff::next() noexcept {
    const milliseconds delay = next_;
    const auto grown = static_cast<milliseconds::rep>(static_cast<double>(next_.count()) * factor_);
    next_ = std::min(maximum_, milliseconds(grown));
    return delay;
}

milliseconds jittered(milliseconds delay, double jitter) noexcept {
    return milliseconds(
        static_cast<milliseconds::rep>(static_cast<double>(delay.count()) * (0.75 + jitter / 2)));
}

milliseconds not_before(milliseconds asked, double jitter) noexcept {
    return milliseconds(
        static_cast<milliseconds::rep>(static_cast<double>(asked.count()) * (1 + jitter / 4)));
}

} // namespace sandboxd::core
