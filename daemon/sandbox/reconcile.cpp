// Comparing what the records say with what the cloud says: at the start, and when asked to.
//
// One listing serves all records; only for what it does not show the platform is asked by id. A
// failed question changes nothing and is asked again. A record that somebody works on is left to
// that somebody.
#include "core/backoff.hpp"
#include "core/cloud_error.hpp"
#include "core/listing_review.hpp"
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

// While the outcome of a create was open just now, and while something waits for the platform to
// say it a second time; longer than core/cloud_clock takes to believe it.
constexpr std::chrono::milliseconds look_soon{65'000};
static_assert(look_soon > core::cloud_clock::confirm_after);
// What others do to our sandboxes is noticed by then at the latest.
constexpr std::chrono::milliseconds look_every{300'000};

} // namespace

asio::awaitable<void> manager::run() {
    co_await (reconcile_until_done() && reap() && tend_queue() && mind_owners() &&
              keep_accounts() && keep_awake());
}

// Remembered, since one that is under way may have asked too early.
void manager::reconcile_soon() {
    reconcile_again_ = true;
    reconcile_wanted_.notify_all();
}

std::chrono::milliseconds manager::look_again_in() const {
    std::chrono::milliseconds soonest = account_.clock().in_doubt() ? look_soon : look_every;
    const std::int64_t recent = cloud_time() - 600;
    for (const auto& [key, each] : entries_) {
        const core::sandbox_record& record = each->record;
        const std::vector<core::open_doubt>& doubts = record.doubts;
        // Nobody else looks at what is on its way, or may be, with nobody waiting for it.
        if (!each->current && (record.create_pending || core::is_on_its_way(record.state))) {
            return core::look_up_gap;
        }
        const bool doubtful =
            !doubts.empty() && (doubts.back().since == 0 || doubts.back().since > recent);
        if (doubtful || each->age.wants_another()) {
            soonest = look_soon;
        }
    }
    return soonest;
}

asio::awaitable<void> manager::reconcile_until_done() {
    core::backoff retry(std::chrono::milliseconds(500), std::chrono::milliseconds(30'000));
    for (;;) {
        if (!account_.configured()) {
            co_await reconcile_wanted_.wait();
            continue;
        }
        reconcile_again_ = false;
        const bool well = co_await reconcile();
        std::chrono::milliseconds delay = look_again_in();
        if (well) {
            reconciled_ = true;
            reconcile_trouble_.clear();
            retry.reset();
            pulse_->activity.notify_all();
        } else {
            const std::optional<cloud::failure> held = account_.held_back();
            delay =
                std::max(retry.next(), held ? *held->retry_after : std::chrono::milliseconds(0));
        }
        if (reconcile_again_) {
            continue;
        }
        asio::steady_timer timer(executor_, delay);
        co_await (timer.async_wait(asio::use_awaitable) || reconcile_wanted_.wait());
    }
}

asio::awaitable<cloud::result<std::vector<cloud::sandbox_info>>> manager::list_all() {
    const auto list = [](cloud::client& on) { return on.list(); };
    co_return co_await account_.ask(list);
}

asio::awaitable<bool> manager::reconcile() {
    const bool anything = std::any_of(entries_.begin(), entries_.end(), [](const auto& each) {
        return !each.second->record.sandbox_id.empty() || each.second->record.create_pending ||
               !each.second->record.doubts.empty();
    });
    if (!anything && orphans_.empty() && (listed_once_ || options_.fresh_instance)) {
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
    const auto listed = co_await list_all();
    if (!listed.has_value()) {
        reconcile_trouble_ = core::error_from(listed.error(), "listing the sandboxes").what();
        spdlog::warn("reconcile: {}", reconcile_trouble_);
        co_return false;
    }
    listed_once_ = true;
    std::vector<std::shared_ptr<entry>> missing;
    const auto untouched = [&](const entry& each) {
        return !is_in_use(each) && each.last_used <= asked;
    };
    for (const std::shared_ptr<entry>& each : quiet) {
        if (untouched(*each)) {
            rebind(*each, *listed);
            if (!apply_listing(*each, *listed)) {
                missing.push_back(each);
            }
        }
    }
    for (const std::shared_ptr<entry>& each : missing) {
        const std::string id = each->record.sandbox_id;
        const auto look = [&id](cloud::client& on) { return on.get(id); };
        const auto got = co_await account_.ask(look);
        if (untouched(*each) && each->record.sandbox_id == id) {
            apply_look(*each, got);
        }
    }
    note_others(*listed);
    for (const auto& [key, each] : entries_) {
        if (const std::optional<std::int64_t> at = usable_time()) {
            core::age_doubts(each->record, *at);
        }
    }
    co_await save_or_complain();
    retire_old();
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

// False: its sandbox is not listed, which alone proves nothing.
bool manager::apply_listing(entry& each, const std::vector<cloud::sandbox_info>& listing) {
    core::sandbox_record& record = each.record;
    if (!is_of_account(each)) {
        return true; // another account's listing says nothing about it
    }
    if (record.create_pending) {
        // Found, it is adopted, so that the reaper sees it even if nobody ever asks for the key
        // again. Absent twice, it takes no place any more; should it turn up all the same, its
        // doubt has it deleted.
        const cloud::sandbox_info* const made = core::made_for(listing, record, options_.instance);
        if (made == nullptr) {
            if (!each.absent_since) {
                each.absent_since = awake();
            } else if (awake() - *each.absent_since >= core::look_up_gap) {
                spdlog::info("{}: no sandbox has turned up: none was made", describe(record.key));
                record.create_pending = false;
                record.state = core::life_state::absent;
                each.absent_since.reset();
                places_.on_freed(now());
            }
            return true;
        }
        spdlog::info("{}: sandbox {} was made by a create whose answer was lost",
                     describe(record.key), made->id);
        record.sandbox_id = made->id;
        record.created_at = made->created_at;
        record.create_pending = false;
        record.state = core::life_state::creating; // so that its boot counts as one
    }
    if (record.sandbox_id.empty()) {
        return true;
    }
    const auto found =
        std::find_if(listing.begin(), listing.end(),
                     [&](const cloud::sandbox_info& seen) { return seen.id == record.sandbox_id; });
    if (found == listing.end()) {
        return false;
    }
    apply_state(each, *found);
    return true;
}

// A listing did not show it, or not alive. Gone is only what the platform says of that very id too.
void manager::apply_look(entry& each, const cloud::result<cloud::sandbox_info>& got) {
    if (got.has_value()) {
        apply_state(each, *got);
    } else if (got.error().kind == cloud::failure_kind::not_found) {
        cloud::sandbox_info gone;
        gone.state = cloud::sandbox_state::deleted;
        apply_state(each, gone);
    }
}

void manager::apply_state(entry& each, const cloud::sandbox_info& seen) {
    core::sandbox_record& record = each.record;
    const core::life_state state = core::life_state_of(seen.state);
    if (state == core::life_state::absent) {
        spdlog::warn("{}: sandbox {} is gone, with its files", describe(record.key),
                     record.sandbox_id);
        record.sandbox_id.clear();
        record.state = state;
        record.state_lost = true;
        return;
    }
    if (state == core::life_state::running && record.state != core::life_state::running) {
        if (record.state != core::life_state::unknown) {
            ++record.generation; // it has booted since it was last seen
        }
        each.used(awake()); // how long it has been idle is not known: the count starts anew
    }
    if (core::is_active(record.state) && !core::is_active(state)) {
        places_.on_freed(now());
    }
    if (!seen.plan.empty()) {
        record.runs_on = seen.plan;
    }
    if (state != core::life_state::unknown) {
        record.state = state;
    }
}

} // namespace sandboxd::sandbox
