// The cloud's time, for money and for what is deleted by age: never the local clock, which people
// and programs set, once the cloud has told its own; and never the word of a single answer.
//
// Every Date is compared with the course so far, carried on by a clock that goes on while the
// machine sleeps: one that slept for days agrees with the cloud at once. What does not agree may be
// a proxy with a wrong clock, a cached answer, or one that lay unread while the process was
// stopped. It is believed only if another answer says the same `confirm_after` later; until then
// the old course is kept and the clock is unsettled: nothing is deleted or dated by it.
//
// That answers have a Date is no promise of the API. Where they have none, the machine's time of
// when this process began, or what an earlier one knew, is carried on: good enough to count money
// by and to let a doubt end, and never settled, so nothing is deleted by it.
//
// Pure. `elapsed` is a clock that only goes forward and goes on while the machine sleeps
// (CLOCK_BOOTTIME), `awake` one that stands still meanwhile; all times in milliseconds, those of
// the cloud since the Unix epoch.
#pragma once

#include "core/backoff.hpp"

#include <algorithm>
#include <optional>
#include <string>

namespace sandboxd::core {

// What a settled clock knew; kept in the state.
struct clock_mark {
    std::string boot; // of the machine: `elapsed` counts from it
    milliseconds elapsed{0};
    milliseconds cloud{0}; // it was then; 0: never known
};

class cloud_clock {
public:
    static constexpr milliseconds confirm_after{60'000};

    // `local`: what the machine takes for the time; a guess until the cloud is heard.
    cloud_clock(milliseconds elapsed, milliseconds local) noexcept : offset_(local - elapsed) {}

    // Before the first Date: what an earlier process knew. In the same boot of the machine its
    // course goes on; else the cloud's time is at least later than it was then.
    void resume(const clock_mark& known, bool same_boot, milliseconds elapsed) noexcept {
        if (known.cloud.count() == 0) {
            return;
        }
        if (same_boot && known.elapsed <= elapsed) {
            offset_ = known.cloud - known.elapsed;
            known_ = true;
        } else {
            offset_ = std::max(offset_, known.cloud - elapsed);
        }
    }

    // The Date of a good answer, whole seconds, which came just now.
    void on_date(milliseconds elapsed, milliseconds awake, milliseconds date) noexcept {
        const milliseconds offset = date - elapsed;
        const milliseconds off_course = apart(offset, offset_);
        if (off_course <= jump) {
            if (!known_ || off_course > tolerance) {
                offset_ = offset;
            }
            settle();
            return;
        }
        const bool the_same = in_doubt_ && apart(offset, other_offset_) <= agreement;
        if (!the_same) {
            in_doubt_ = true;
            other_offset_ = offset;
            other_since_ = awake;
        } else if (awake - other_since_ >= confirm_after) {
            offset_ = offset;
            settle();
        }
    }

    // A good answer without one.
    void on_no_date() noexcept {
        if (!agreed_ && !in_doubt_) {
            dateless_ = true;
            known_ = true;
        }
    }

    milliseconds at(milliseconds elapsed) const noexcept { return elapsed + offset_; }
    // Whether its course is the cloud's at all, or the best there is, and not a guess in the hope
    // of the cloud's word.
    bool known() const noexcept { return known_; }
    // Whether the last answer agreed: what is final may go by it.
    bool settled() const noexcept { return agreed_ && !in_doubt_; }
    // Whether what can be undone may go by it.
    bool usable() const noexcept { return (agreed_ || dateless_) && !in_doubt_; }
    // Something else has been heard, and awaits another answer.
    bool in_doubt() const noexcept { return in_doubt_; }
    // How far the local clock is ahead of what the last answer said, believed or not; nothing until
    // the cloud was heard.
    std::optional<milliseconds> ahead(milliseconds elapsed, milliseconds local) const noexcept {
        if (in_doubt_) {
            return local - elapsed - other_offset_;
        }
        return agreed_ ? std::optional(local - at(elapsed)) : std::nullopt;
    }

private:
    static constexpr milliseconds tolerance{2'500}; // small differences are the network's
    static constexpr milliseconds jump{300'000};
    // Less than confirm_after, so that two answers which were read at once after a long stop of
    // this process do not confirm each other.
    static constexpr milliseconds agreement{30'000};

    static milliseconds apart(milliseconds a, milliseconds b) noexcept {
        return a > b ? a - b : b - a;
    }
    void settle() noexcept {
        known_ = true;
        agreed_ = true;
        in_doubt_ = false;
    }

    milliseconds offset_;
    bool known_ = false;
    bool agreed_ = false;   // an answer to this process was on its course
    bool dateless_ = false; // the cloud answers and does not tell
    bool in_doubt_ = false;
    milliseconds other_offset_{0}; // heard, and not believed yet
    milliseconds other_since_{0};  // awake
};

} // namespace sandboxd::core
