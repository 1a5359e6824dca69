#include "core/money.hpp"

#include <algorithm>

namespace sandboxd::core {
namespace {

constexpr milliseconds longest_step = std::chrono::hours(24);

double in_seconds(milliseconds time) {
    return static_cast<double>(time.count()) / 1000;
}

double cost(double seconds, double usd_per_hour) {
    return seconds * usd_per_hour / 3600;
}

void count_running(usage& of, ledger& total, const observation& seen) {
    const bool counting = of.counted_to.count() != 0;
    milliseconds passed{0};
    if (counting) {
        const bool runs = seen.billed && seen.observed;
        const milliseconds until =
            runs ? seen.now : std::min(seen.now, of.seen_at + seen.longest_unused);
        passed = std::clamp(until - of.counted_to, milliseconds(0), longest_step);
        of.seconds += in_seconds(passed);
        of.unpriced_s += in_seconds(passed);
    }
    if (seen.observed) {
        of.counted_to = seen.billed ? seen.now : milliseconds(0);
        of.seen_at = of.counted_to;
    } else if (counting) {
        of.counted_to += passed; // should it turn out to run still, the rest is counted then
    }
    if (seen.usd_per_hour && of.unpriced_s > 0) {
        const double usd = cost(of.unpriced_s, *seen.usd_per_hour);
        of.unpriced_s = 0;
        of.usd += usd;
        total.today_usd += usd;
        total.total_usd += usd;
    }
}

void count_saved(usage& of, ledger& total, const observation& seen) {
    if (of.saving_s <= 0) {
        return;
    }
    if (seen.billed) {
        of.saving_s = 0; // used again
        return;
    }
    const double passed =
        std::min(of.saving_s, in_seconds(std::max(seen.now - of.saved_to, milliseconds(0))));
    of.saving_s -= passed;
    of.saved_to = seen.now;
    const double usd = cost(passed, seen.usd_per_hour.value_or(0));
    total.saved_today_usd += usd;
    total.saved_usd += usd;
}

// A clock that was ahead by days, and believed, must not keep the next days from beginning: its day
// gets its right number, and what was spent on it stands.
void turn_page(ledger& total, std::int64_t day) {
    if (day > total.day) {
        total.today_usd = 0;
        total.saved_today_usd = 0;
    }
    if (day > total.day || total.day - day > 1) {
        total.day = day;
    }
}

} // namespace

void count(usage& of, ledger& total, const observation& seen) {
    turn_page(total, seen.day);
    count_running(of, total, seen);
    count_saved(of, total, seen);
}

void begin_saving(usage& of, milliseconds now, milliseconds at_most) {
    of.saving_s = in_seconds(std::max(at_most, milliseconds(0)));
    of.saved_to = now;
}

budget_state judge_budget(const ledger& total, double per_day) noexcept {
    if (per_day <= 0 || total.today_usd < 0.8 * per_day) {
        return budget_state::fine;
    }
    return total.today_usd < per_day ? budget_state::nearly_spent : budget_state::spent;
}

} // namespace sandboxd::core
