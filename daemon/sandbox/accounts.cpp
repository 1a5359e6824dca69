// Money: what each sandbox costs, by observed states and the catalog's prices; the day's budget;
// and what is deleted by its age.
#include "core/money.hpp"
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <ctime>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

using namespace asio::experimental::awaitable_operators;
using std::chrono::milliseconds;

namespace {

constexpr std::chrono::minutes count_period{1};
constexpr std::chrono::hours prices_last{24};
// What costs is counted more often than this, unless the machine slept or the daemon was stopped.
constexpr std::chrono::minutes an_absence{3};

// Days of this machine's people.
std::int64_t day_of(milliseconds cloud) {
    const std::time_t seconds = static_cast<std::time_t>(cloud.count() / 1000);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    return (cloud.count() / 1000 + parts.tm_gmtoff) / 86'400;
}

std::string dollars(double usd) {
    char text[32];
    std::snprintf(text, sizeof text, "$%.2f", usd);
    return text;
}

} // namespace

std::int64_t manager::cloud_time() const {
    return account_.cloud_now().count() / 1000;
}

std::optional<std::int64_t> manager::settled_time() const {
    return account_.clock().settled() ? std::optional(cloud_time()) : std::nullopt;
}

std::optional<std::int64_t> manager::usable_time() const {
    return account_.clock().usable() ? std::optional(cloud_time()) : std::nullopt;
}

std::optional<double> manager::price_of(const core::sandbox_record& record) const {
    return price_of(record.runs_on.empty() ? record.plan : record.runs_on);
}

std::optional<double> manager::price_of(const std::string& plan) const {
    const auto found = prices_.usd_per_hour.find(plan);
    return found == prices_.usd_per_hour.end() ? std::nullopt : std::optional(found->second);
}

// The platform charges while it creates, starts, runs or stops (D). What is not known is as before.
bool manager::is_billed(const entry& each) const {
    const core::sandbox_record& record = each.record;
    if (record.sandbox_id.empty()) {
        return false;
    }
    return record.state == core::life_state::unknown ? record.usage.counted_to.count() != 0
                                                     : core::is_active(record.state);
}

// Whether what becomes of it would be noticed.
bool manager::is_observed(const entry& each) const {
    return is_of_account(each) && !each.unseen && !account_.key_refused() &&
           !account_.unreachable();
}

// What became of the sandboxes meanwhile is known only when they are seen again.
void manager::notice_absence() {
    const milliseconds before = std::exchange(counted_at_, account_.cloud_now());
    if (before.count() == 0 || counted_at_ - before <= an_absence) {
        return; // at the start nothing has been seen yet, and a listing is on its way
    }
    bool any = active_orphans() != 0;
    orphans_unseen_ = any;
    for (const auto& [key, each] : entries_) {
        each->unseen = each->unseen || is_billed(*each);
        any = any || each->unseen;
    }
    if (any) {
        reconcile_soon();
    }
}

std::chrono::seconds manager::longest_unused(const core::sandbox_record& record) const {
    return record.timeout.count() != 0 ? record.timeout : options_.server_timeout;
}

void manager::count_all() {
    const core::cloud_clock& clock = account_.clock();
    notice_absence();
    core::observation seen;
    seen.now = account_.cloud_now();
    seen.day = day_of(seen.now);
    for (const auto& [key, each] : entries_) {
        core::sandbox_record& record = each->record;
        seen.billed = is_billed(*each);
        seen.observed = is_observed(*each);
        seen.longest_unused = longest_unused(record);
        seen.usd_per_hour = price_of(record);
        if (clock.known()) { // by a guess of the time nothing is counted, and no day begins
            core::count(record.usage, ledger_, seen);
        }
        if (record.sandbox_id.empty()) {
            record.usage = {}; // the next one is another sandbox
        }
        if (record.state != core::life_state::stopped) {
            record.stopped_since = 0;
        } else if (clock.settled() &&
                   (record.stopped_since == 0 || record.stopped_since > cloud_time())) {
            record.stopped_since = cloud_time();
        }
    }
    for (const cloud::sandbox_info& info : orphans_) {
        seen.billed = core::is_active(core::life_state_of(info.state));
        seen.observed = !orphans_unseen_ && !account_.key_refused() && !account_.unreachable();
        seen.usd_per_hour = price_of(info.plan);
        const std::chrono::seconds timeout = core::timeout_tag(info);
        seen.longest_unused = timeout.count() != 0 ? timeout : options_.server_timeout;
        if (clock.known()) {
            core::count(orphan_usage_[info.id], ledger_, seen);
        }
    }
}

// Unseen for so long that the platform has stopped it, unless somebody else uses it.
bool manager::given_up(const entry& each) const {
    return !is_observed(each) &&
           account_.cloud_now() >= each.record.usage.seen_at + longest_unused(each.record);
}

money manager::spending() {
    count_all();
    money now{ledger_, 0, options_.budget_per_day, true};
    for (const auto& [key, each] : entries_) {
        if (!is_billed(*each) || given_up(*each)) {
            continue;
        }
        const std::optional<double> price = price_of(each->record);
        now.usd_per_hour += price.value_or(0);
        now.prices_known = now.prices_known && price.has_value();
    }
    for (const cloud::sandbox_info& info : orphans_) {
        if (core::is_active(core::life_state_of(info.state))) {
            const std::optional<double> price = price_of(info.plan);
            now.usd_per_hour += price.value_or(0);
            now.prices_known = now.prices_known && price.has_value();
        }
    }
    return now;
}

core::budget_state manager::budget() {
    count_all();
    return core::judge_budget(ledger_, options_.budget_per_day);
}

// Refuses new starts and nothing else: what runs goes on.
std::optional<rpc_error> manager::over_budget() {
    if (budget() != core::budget_state::spent) {
        return std::nullopt;
    }
    return rpc_error(error_name::budget_reached,
                     "today's sandboxes have cost " + dollars(ledger_.today_usd) +
                         ", and the budget is " + dollars(options_.budget_per_day) + " a day");
}

asio::awaitable<void> manager::keep_accounts() {
    core::backoff retry(std::chrono::seconds(5), std::chrono::minutes(10));
    for (;;) {
        const bool any = std::any_of(entries_.begin(), entries_.end(), [](const auto& each) {
            return core::is_active(each.second->record.state);
        });
        if ((!any && active_orphans() == 0) || !account_.configured()) {
            co_await pulse_->activity.wait();
            continue;
        }
        milliseconds delay = count_period;
        const std::int64_t age = cloud_time() - prices_.at;
        if (age < 0 || age >= std::chrono::seconds(prices_last).count()) {
            const auto ask = [](cloud::client& on) { return on.catalog(); };
            const auto catalog = co_await account_.ask(ask);
            std::map<std::string, double> told;
            if (catalog.has_value()) {
                for (const cloud::plan_info& plan : *catalog) {
                    if (plan.price_per_hour) {
                        told[plan.id] = *plan.price_per_hour;
                    }
                }
            }
            if (told.empty()) {
                delay = retry.next();
            } else {
                prices_.at = cloud_time();
                prices_.usd_per_hour = std::move(told);
                retry.reset();
                co_await save_or_complain();
            }
        }
        count_all();
        asio::steady_timer timer(executor_, delay);
        co_await timer.async_wait(asio::use_awaitable);
    }
}

// Only just after a listing.
void manager::retire_old() {
    for (const auto& [key, each] : entries_) {
        const bool old =
            each->age.on_listing(each->record, settled_time(), now(), options_.retention);
        if (old && !is_in_use(*each) && is_of_account(*each)) {
            spdlog::info("{}: stopped for longer than retention, deleting it", describe(key));
            begin(each, operation_kind::terminate, {});
        }
    }
}

} // namespace sandboxd::sandbox
