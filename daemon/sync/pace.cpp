#include "sync/pace.hpp"

#include <algorithm>

namespace sandboxd::sync {
namespace {

constexpr std::uint64_t smallest_telling = 256U << 10;
constexpr double guess = 10e6; // a good line at home; wrong guesses last for one part
constexpr double seconds_a_part = 4;
constexpr double smallest_part = 4U << 20;
// Also while nothing is known. The last one is sent and put in place while nothing else goes on,
// and each costs a round trip.
constexpr double largest_part = 16U << 20;
constexpr double newest_weight = 0.5;
constexpr double least_gain = 0.9;

} // namespace

void pace::took(std::uint64_t bytes, double seconds) {
    if (bytes < smallest_telling) return;
    const double rate = static_cast<double>(bytes) / std::max(seconds, 1e-6);
    rate_ = known() ? newest_weight * rate + (1 - newest_weight) * rate_ : rate;
}

double pace::rate() const noexcept {
    return known() ? rate_ : guess;
}

std::uint64_t pace::part_size() const noexcept {
    const double size =
        known() ? std::clamp(rate_ * seconds_a_part, smallest_part, largest_part) : largest_part;
    return static_cast<std::uint64_t>(size);
}

bool compression_pays(double ratio, double rate, double compressor) noexcept {
    const double plain = 1 / rate;
    const double compressed = std::max(1 / compressor, ratio / rate);
    return compressed < least_gain * plain;
}

} // namespace sandboxd::sync
