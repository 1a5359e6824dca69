// What a listing of the account shows beyond the sandboxes in use: which are ours and late, which
// are ours and unknown, and how many are somebody else's. Pure.
//
// Only tags prove what is ours (`owner` and `instance` together); everything else on the account is
// counted and never named.
#pragma once

#include "cloud/model.hpp"
#include "core/sandbox_record.hpp"

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::core {

// How long a creation whose outcome was in doubt may still turn up.
inline constexpr std::chrono::hours doubt_lasts{24};
// Between the two listings that prove a doubtful create absent: it may take effect after its
// answer.
inline constexpr std::chrono::milliseconds look_up_gap{10'000};

struct listing_review {
    // Made by a request of ours that nobody waits for any more: to be deleted.
    std::vector<cloud::sandbox_info> late;
    // Made by this daemon's instance, and no record knows them: the state was lost. People decide.
    std::vector<cloud::sandbox_info> orphans;
    int others_active = 0; // of other programs and people
};

listing_review review_listing(const std::vector<cloud::sandbox_info>& listing,
                              const std::vector<sandbox_record>& records,
                              std::string_view instance);

// Forgets doubts older than doubt_lasts, dates new ones; `now` in unix seconds, of a clock that is
// settled. One dated later than now was dated by a clock that was wrong, and begins anew. An open
// intent keeps its own: only listings end that.
void age_doubts(sandbox_record& record, std::int64_t now);

} // namespace sandboxd::core
