// Comparing what the records say with what the cloud says: at the start, and when asked to.
//
// One listing serves all records. A failed one changes nothing and is tried again. A record that
// somebody works on is left to that somebody.
#include "core/backoff.hpp"
#include "core/cloud_error.hpp"
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

using namespace asio::experimental::awaitable_operators;

namespace {

// While the outcome of a create is open.
constexpr std::chrono::seconds look_for_pending_every{60};

} // namespace

asio::awaitable<void> manager::run() {
    co_await (reconcile_until_done() && reap() && tend_queue() && keep_awake());
}

void manager::reconcile_soon() {
    reconcile_wanted_.notify_all();
}

asio::awaitable<void> manager::reconcile_until_done() {
    core::backoff retry(std::chrono::milliseconds(500), std::chrono::milliseconds(30'000));
    for (;;) {
        if (!account_.configured()) {
            co_await reconcile_wanted_.wait();
            continue;
        }
        const bool well = co_await reconcile();
        if (well) {
            reconciled_ = true;
            reconcile_trouble_.clear();
            retry.reset();
            pulse_->activity.notify_all();
            if (std::none_of(entries_.begin(), entries_.end(),
                             [](const auto& each) { return each.second->record.create_pending; })) {
                co_await reconcile_wanted_.wait();
                continue;
            }
            asio::steady_timer timer(executor_, look_for_pending_every);
            co_await (timer.async_wait(asio::use_awaitable) || reconcile_wanted_.wait());
            continue;
        }
        asio::steady_timer timer(executor_, retry.next());
        co_await (timer.async_wait(asio::use_awaitable) || reconcile_wanted_.wait());
    }
}

asio::awaitable<bool> manager::reconcile() {
    const bool anything = std::any_of(entries_.begin(), entries_.end(), [](const auto& each) {
        return !each.second->record.sandbox_id.empty() || each.second->record.create_pending;
    });
    if (!anything) {
        co_return true; // nothing to compare, so the cloud need not be asked
    }
    // What is touched while the listing is under way is newer than the listing.
    std::vector<std::shared_ptr<entry>> quiet;
    for (const auto& [key, each] : entries_) {
        if (!is_in_use(*each)) {
            quiet.push_back(each);
        }
    }
    const std::chrono::milliseconds asked = awake();
    const auto list_all = [](cloud::client& on) { return on.list(); };
    const auto listed = co_await account_.ask(list_all);
    if (!listed.has_value()) {
        reconcile_trouble_ = core::error_from(listed.error(), "listing the sandboxes").what();
        spdlog::warn("reconcile: {}", reconcile_trouble_);
        co_return false;
    }
    for (const std::shared_ptr<entry>& each : quiet) {
        if (!is_in_use(*each) && each->last_used <= asked) {
            rebind(*each, *listed);
            apply_listing(*each, *listed);
        }
    }
    co_await save_or_complain();
    co_return true;
}

// A listing under another key that shows a sandbox with our tags proves that the key is of the same
// account.
void manager::rebind(entry& each, const std::vector<cloud::sandbox_info>& listing) {
    core::sandbox_record& record = each.record;
    if (record.base_url != account_.base_url() || record.fingerprint == account_.fingerprint() ||
        record.sandbox_id.empty()) {
        return;
    }
    for (const cloud::sandbox_info& seen : listing) {
        if (seen.id == record.sandbox_id && core::is_made_by(seen, options_.instance)) {
            record.fingerprint = account_.fingerprint();
        }
    }
}

void manager::apply_listing(entry& each, const std::vector<cloud::sandbox_info>& listing) {
    core::sandbox_record& record = each.record;
    if (!is_of_account(each)) {
        return; // another account's listing says nothing about it
    }
    if (record.create_pending) {
        // Found, it is adopted, so that the reaper sees it even if nobody ever asks for the key
        // again. Absent, it may still turn up: the intent stays open, and the next bring-up
        // decides.
        const auto made =
            std::find_if(listing.begin(), listing.end(), [&](const cloud::sandbox_info& seen) {
                return seen.state != cloud::sandbox_state::deleted &&
                       core::is_made_for(seen, record, options_.instance);
            });
        if (made == listing.end()) {
            return;
        }
        spdlog::info("{}: sandbox {} was made by a create whose answer was lost",
                     describe(record.key), made->id);
        record.sandbox_id = made->id;
        record.created_at = made->created_at;
        record.create_pending = false;
        record.state = core::life_state::creating; // so that its boot counts as one
    }
    if (record.sandbox_id.empty()) {
        return;
    }
    const auto found =
        std::find_if(listing.begin(), listing.end(),
                     [&](const cloud::sandbox_info& seen) { return seen.id == record.sandbox_id; });
    const core::life_state state =
        found == listing.end() ? core::life_state::absent : core::life_state_of(found->state);
    if (state == core::life_state::absent) {
        spdlog::warn("{}: sandbox {} is gone, with its files", describe(record.key),
                     record.sandbox_id);
        record.sandbox_id.clear();
        record.state = state;
        record.state_lost = true;
        return;
    }
    if (state == core::life_state::running) {
        if (record.state != core::life_state::running &&
            record.state != core::life_state::unknown) {
            ++record.generation; // it has booted since it was last seen
        }
        each.used(awake()); // how long it has been idle is not known: the count starts anew
    }
    if (state != core::life_state::unknown) {
        record.state = state;
    }
}

} // namespace sandboxd::sandbox
