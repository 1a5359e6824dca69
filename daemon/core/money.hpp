// What sandboxes cost, and what stopping idle ones saves: running seconds from observed states,
// times the catalog's price.
//
// Pure. Times are the cloud's (core/cloud_clock), in milliseconds since the Unix epoch, so that
// what ran while the daemon was away or the machine slept is counted too. Amounts are US dollars;
// they are an account of what was seen, not the platform's bill.
#pragma once

#include "core/backoff.hpp"

#include <cstdint>
#include <optional>

namespace sandboxd::core {

// Of one sandbox; kept in its record.
struct usage {
    double seconds = 0;         // billed
    double usd = 0;             // what they cost
    double unpriced_s = 0;      // those of them whose price was not known yet
    milliseconds counted_to{0}; // it was billed when last seen, then; 0: it was not
    milliseconds seen_at{0};    // last seen to be billed then; may be earlier than counted_to
    double saving_s = 0;        // for so long at most it would have run on, had it not been stopped
    milliseconds saved_to{0};   // of those, counted to here
};

// Of the account, as far as this daemon's sandboxes go; kept in the state.
struct ledger {
    std::int64_t day = 0; // counts days; which one is the first does not matter
    double today_usd = 0;
    double total_usd = 0;
    double saved_today_usd = 0;
    double saved_usd = 0;
};

struct observation {
    bool billed = false;                // as seen now, or when last seen
    bool observed = true;               // now; else it is of another account, or nothing answers
    std::optional<double> usd_per_hour; // of its plan; nothing: not known
    milliseconds now{0};
    std::int64_t day = 0;
    // One that is found stopped after a time unseen, or is not seen any more, has run on for so
    // long at the most: then the platform stops what nobody uses.
    milliseconds longest_unused{3'600'000};
};

// What has passed since the last look is added to both. No step adds more than a day: the platform
// stops what has run for so long (D). A day that has begun does not begin again when a clock goes
// back.
void count(usage& of, ledger& total, const observation& seen);

// It was stopped for being idle: otherwise it would have run for `at_most` more.
void begin_saving(usage& of, milliseconds now, milliseconds at_most);

enum class budget_state { fine, nearly_spent, spent };
// `per_day` zero: no budget. Nearly: from 80 %.
budget_state judge_budget(const ledger& total, double per_day) noexcept;

} // namespace sandboxd::core
