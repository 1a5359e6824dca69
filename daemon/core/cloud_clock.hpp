// The cloud's time, for money and for what is deleted by age: never the local clock, which people
// and programs set, once the cloud has told its own.
//
// Pure. `elapsed` is a clock that only goes forward and goes on while the machine sleeps
// (CLOCK_BOOTTIME); all times in milliseconds, those of the cloud since the Unix epoch.
#pragma once

#include "core/backoff.hpp"

#include <optional>

namespace sandboxd::core {

class cloud_clock {
public:
    // `local`: what the machine takes for the time; used until the cloud is heard.
    cloud_clock(milliseconds elapsed, milliseconds local) noexcept : offset_(local - elapsed) {}

    // The Date of an answer, whole seconds, which came just now. Small differences are the
    // network's.
    void on_date(milliseconds elapsed, milliseconds date) noexcept {
        const milliseconds offset = date - elapsed;
        const milliseconds apart = offset > offset_ ? offset - offset_ : offset_ - offset;
        if (!heard_ || apart > tolerance) {
            offset_ = offset;
        }
        heard_ = true;
    }

    milliseconds at(milliseconds elapsed) const noexcept { return elapsed + offset_; }
    bool heard() const noexcept { return heard_; }
    // How far the local clock is ahead; nothing until the cloud was heard.
    std::optional<milliseconds> ahead(milliseconds elapsed, milliseconds local) const noexcept {
        return heard_ ? std::optional(local - at(elapsed)) : std::nullopt;
    }

private:
    static constexpr milliseconds tolerance{2'500};

    milliseconds offset_;
    bool heard_ = false;
};

} // namespace sandboxd::core
