// How long until the platform is asked again for what has become of the sandboxes.
//
// Pure. Others start, stop and delete on the same account, and nobody tells.
#pragma once

#include "core/backoff.hpp"
#include "core/cloud_clock.hpp"
#include "core/listing_review.hpp"

namespace sandboxd::core {

// Of all records together.
struct look_reasons {
    bool place_wanted = false; // somebody waits for one that others may have freed
    bool on_its_way = false;   // a sandbox is, or may be made, and nobody waits for it
    bool doubtful = false;     // the outcome of a create was open some minutes ago
    bool another_word = false; // the platform has to say something a second time: an age, its time
};

// Longer than core/cloud_clock takes to believe it.
inline constexpr milliseconds look_soon{65'000};
static_assert(look_soon > cloud_clock::confirm_after);
// What others do is noticed by then at the latest.
inline constexpr milliseconds look_every{300'000};

constexpr milliseconds look_again_in(const look_reasons& why) noexcept {
    if (why.place_wanted || why.on_its_way) {
        return look_up_gap;
    }
    return why.doubtful || why.another_word ? look_soon : look_every;
}

} // namespace sandboxd::core
