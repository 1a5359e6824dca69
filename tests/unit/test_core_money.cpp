// Running seconds, costs, savings, and budgets.
#include "core/money.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::core;
using ms = milliseconds;

namespace {

constexpr double price = 3.6; // a tenth of a cent a second

observation at(int second, bool billed, std::optional<double> usd_per_hour = price,
               std::int64_t day = 1) {
    observation seen;
    seen.now = ms(1'000'000 + second * 1'000);
    seen.billed = billed;
    seen.usd_per_hour = usd_per_hour;
    seen.day = day;
    seen.longest_unused = ms(100'000);
    return seen;
}

} // namespace

TEST_CASE("money: running seconds cost, stopped ones do not") {
    usage of;
    ledger total;
    count(of, total, at(0, false));
    count(of, total, at(10, true)); // began then, as far as anybody saw
    CHECK(of.seconds == 0);
    count(of, total, at(15, true));
    count(of, total, at(30, false));
    count(of, total, at(500, false));
    CHECK(of.seconds == doctest::Approx(20));
    CHECK(of.usd == doctest::Approx(0.02));
    CHECK(total.today_usd == doctest::Approx(0.02));
    CHECK(total.total_usd == doctest::Approx(0.02));
}

TEST_CASE("money: a look is counted once, and a clock that goes back takes nothing away") {
    usage of;
    ledger total;
    count(of, total, at(0, true));
    count(of, total, at(10, true));
    count(of, total, at(10, true));
    count(of, total, at(5, true));
    CHECK(of.seconds == doctest::Approx(10));
}

TEST_CASE(
    "money: unseen for long, it ran on if it still runs, else as long as the platform lets it") {
    usage ran;
    usage ended;
    ledger total;
    count(ran, total, at(0, true));
    count(ended, total, at(0, true));
    count(ran, total, at(50'000, true));
    count(ended, total, at(50'000, false));
    CHECK(ran.seconds == doctest::Approx(50'000));
    CHECK(ended.seconds == doctest::Approx(100));
}

TEST_CASE("money: what ran before its price was known is paid for once it is") {
    usage of;
    ledger total;
    count(of, total, at(0, true, std::nullopt));
    count(of, total, at(10, true, std::nullopt));
    CHECK(of.usd == 0);
    count(of, total, at(10, false));
    CHECK(of.usd == doctest::Approx(0.01));
    CHECK(of.unpriced_s == 0);
}

TEST_CASE("money: every day begins at nothing") {
    usage of;
    ledger total;
    count(of, total, at(0, true));
    count(of, total, at(10, true, price, 1));
    count(of, total, at(14, true, price, 2));
    CHECK(total.today_usd == doctest::Approx(0.004));
    CHECK(total.total_usd == doctest::Approx(0.014));
}

TEST_CASE("money: an idle stop saves what it would have run on, and no more") {
    usage of;
    ledger total;
    count(of, total, at(0, true));
    count(of, total, at(10, false));
    begin_saving(of, at(10, false).now, ms(30'000));
    count(of, total, at(20, false));
    CHECK(total.saved_today_usd == doctest::Approx(0.01));
    count(of, total, at(1'000, false));
    CHECK(total.saved_usd == doctest::Approx(0.03));
    begin_saving(of, at(1'000, false).now, ms(30'000));
    count(of, total, at(1'001, true)); // used again at once
    count(of, total, at(1'100, false));
    CHECK(total.saved_usd == doctest::Approx(0.03));
    begin_saving(of, at(1'100, false).now, ms(-5));
    count(of, total, at(1'200, false));
    CHECK(total.saved_usd == doctest::Approx(0.03));
}

TEST_CASE("money: the budget") {
    ledger total;
    for (const auto& [today, expected] : {std::pair(0.0, budget_state::fine),
                                          {0.79, budget_state::fine},
                                          {0.81, budget_state::nearly_spent},
                                          {0.99, budget_state::nearly_spent},
                                          {1.0, budget_state::spent},
                                          {7.0, budget_state::spent}}) {
        total.today_usd = today;
        CHECK(judge_budget(total, 1.0) == expected);
        CHECK(judge_budget(total, 0.0) == budget_state::fine);
    }
}

TEST_CASE("money: one step counts a day at the most, whatever the clock says") {
    usage of;
    ledger total;
    count(of, total, at(0, true));
    count(of, total, at(20 * 86'400, true));
    CHECK(of.seconds == doctest::Approx(86'400));
}

TEST_CASE("money: a day does not begin twice because a clock goes back") {
    usage of;
    ledger total;
    count(of, total, at(0, true, price, 7));
    count(of, total, at(10, true, price, 7));
    count(of, total, at(10, true, price, 6)); // over midnight and back
    CHECK(total.today_usd == doctest::Approx(0.01));
    count(of, total, at(10, true, price, 7));
    CHECK(total.today_usd == doctest::Approx(0.01));
    total.day = 400; // a clock that was believed, and wrong
    count(of, total, at(10, true, price, 7));
    CHECK(total.today_usd == doctest::Approx(0.01));
    count(of, total, at(10, true, price, 8));
    CHECK(total.today_usd == doctest::Approx(0));
}

TEST_CASE("money: what is not seen any more is counted for as long as the platform lets it run") {
    usage of;
    ledger total;
    count(of, total, at(0, true));
    count(of, total, at(10, true));
    const auto unseen = [](int second) {
        observation seen = at(second, true);
        seen.observed = false;
        return seen;
    };
    count(of, total, unseen(60));
    CHECK(of.seconds == doctest::Approx(60));
    count(of, total, unseen(5'000));
    count(of, total, unseen(50'000));
    CHECK(of.seconds == doctest::Approx(110));
    usage gone = of;
    count(of, total, at(60'000, true)); // it ran all the time
    CHECK(of.seconds == doctest::Approx(60'000));
    count(gone, total, at(60'000, false));
    CHECK(gone.seconds == doctest::Approx(110)); // and nothing twice
    usage never;
    count(never, total, unseen(10));
    count(never, total, unseen(20));
    CHECK(never.seconds == 0);
}
