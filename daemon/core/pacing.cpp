#include "core/pacing.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {

using kind = cloud::failure_kind;

void pacing::pause::begin(milliseconds now, const cloud::failure& failure, double jitter) {
    const milliseconds asked = failure.retry_after.value_or(milliseconds(0));
    if (why && now < until) {
        // Sent before the pause began: nothing new, but for how long to be patient.
        until = std::max(until, now + asked);
        return;
    }
    why = failure;
    until = now + std::max(jittered(delays.next(), jitter), not_before(asked, jitter));
}

void pacing::pause::end() noexcept {
    why.reset();
    delays.reset();
}

std::optional<cloud::failure> pacing::pause::answer(milliseconds now) const {
    if (!why || now >= until) {
        return std::nullopt;
    }
    cloud::failure refusal = *why;
    refusal.retry_after = until - now;
    refusal.withheld = true;
    return refusal;
}

void pacing::on_success(purpose what) noexcept {
    everything_.end();
    key_.end();
    key_doubted_ = false;
    if (what == purpose::a_machine) {
        machines_.end();
    }
}

void pacing::on_failure(milliseconds now, const cloud::failure& failure, double jitter) {
    if (failure.withheld) {
        return; // our own word
    }
    switch (failure.kind) {
    case kind::rate_limited:
        everything_.begin(now, failure, jitter);
        break;
    case kind::no_capacity:
        machines_.begin(now, failure, jitter);
        break;
    case kind::unauthorized:
        if (std::exchange(key_doubted_, true)) {
            key_.begin(now, failure, jitter);
        }
        break;
    default:
        break;
    }
}

std::optional<cloud::failure> pacing::held_back(milliseconds now, purpose what) const {
    if (auto refusal = key_.answer(now)) {
        return refusal;
    }
    if (auto refusal = everything_.answer(now)) {
        return refusal;
    }
    return what == purpose::a_machine ? machines_.answer(now) : std::nullopt;
}

} // namespace sandboxd::core
