// Comparing what the records say with what the cloud says: at the start, and when asked to.
//
// One listing serves all records; only for what it does not show the platform is asked by id. A
// failed question changes nothing and is asked again. A record that somebody works on is left to
// that somebody.
#include "core/backoff.hpp"
#include "core/cloud_error.hpp"
#include "core/listing_review.hpp"
#include "core/look_interval.hpp"
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

using namespace asio::experimental::awaitable_operators;

namespace {

// A look at one sandbox, as a rule.
constexpr std::chrono::milliseconds look_takes{3'000};

} // namespace

asio::awaitable<void> manager::run() {
    co_await (reconcile_until_done() && reap() && tend_queue() && mind_owners() &&
              keep_accounts() && keep_awake() && keep_saved());
}

// Remembered, since one that is under way may have asked too early.
void manager::reconcile_soon() {
    reconcile_again_ = true;
    reconcile_wanted_.notify_all();
}

std::chrono::milliseconds manager::look_again_in() const {
    core::look_reasons why;
    why.place_wanted = places_.waiting() != 0;
    why.another_word = account_.clock().in_doubt();
    const std::int64_t recent = cloud_time() - 600;
    for (const auto& [key, each] : entries_) {
        const core::sandbox_record& record = each->record;
        const std::vector<core::open_doubt>& doubts = record.doubts;
        why.on_its_way =
            why.on_its_way ||
            (!each->current && (record.create_pending || core::is_on_its_way(record.state)));
        why.doubtful = why.doubtful || (!doubts.empty() &&
                                        (doubts.back().since == 0 || doubts.back().since > recent));
        why.another_word = why.another_word || each->age.wants_another();
    }
    return core::look_again_in(why);
}

asio::awaitable<void> manager::reconcile_until_done() {
    core::backoff retry(std::chrono::milliseconds(500), std::chrono::milliseconds(30'000));
    for (;;) {
        if (!account_.configured()) {
            co_await reconcile_wanted_.wait();
            continue;
        }
        reconcile_again_ = false;
        comparing_ = true;
        const bool well = co_await reconcile();
        comparing_ = false;
        ++comparisons_;
        pulse_->activity.notify_all();
        std::optional<std::chrono::milliseconds> delay;
        if (well) {
            reconciled_ = true;
            reconcile_trouble_.reset();
            retry.reset();
        } else {
            const std::optional<cloud::failure> held = account_.held_back();
            delay =
                std::max(retry.next(), held ? *held->retry_after : std::chrono::milliseconds(0));
        }
        const auto looked = std::chrono::steady_clock::now();
        bool due = false;
        while (!due && !reconcile_again_) {
            // Sooner than was thought, perhaps, once something has happened.
            asio::steady_timer timer(executor_, looked + delay.value_or(look_again_in()));
            const auto first = co_await (timer.async_wait(asio::use_awaitable) ||
                                         reconcile_wanted_.wait() || place_wanted_.wait());
            due = first.index() == 0;
        }
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
        compared_as_ = account_.fingerprint();
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
    const std::string asked_as = account_.fingerprint();
    const auto listed = co_await list_all();
    if (!listed.has_value()) {
        reconcile_trouble_ = core::error_from(listed.error(), "listing the sandboxes");
        spdlog::warn("reconcile: {}", reconcile_trouble_->what());
        co_return false;
    }
    if (asked_as != account_.fingerprint()) {
        reconcile_again_ = true; // it shows what the key before has
        co_return false;
    }
    listed_once_ = true;
    rebind(*listed);
    compared_as_ = asked_as;
    for (const cloud::sandbox_info& seen : *listed) {
        for (const auto& [key, each] : entries_) {
            if (each->record.sandbox_id == seen.id &&
                core::is_active(core::life_state_of(seen.state))) {
                each->unseen = false; // also of one in use, which is left alone below
            }
        }
    }
    std::vector<std::shared_ptr<entry>> missing;
    for (const std::shared_ptr<entry>& each : quiet) {
        if (is_untouched_since(*each, asked) && !apply_listing(*each, *listed)) {
            missing.push_back(each);
        }
    }
    note_others(*listed, asked);
    co_await look_up(missing, asked);
    for (const auto& [key, each] : entries_) {
        if (const std::optional<std::int64_t> at = usable_time()) {
            core::age_doubts(each->record, *at);
        }
    }
    co_await save_or_complain();
    retire_old();
    co_return true;
}

bool manager::is_untouched_since(const entry& each, std::chrono::milliseconds asked) const {
    return !is_in_use(each) && each.last_used <= asked;
}

// All at once, and those that take long go on by themselves: one that hangs holds up nothing else.
asio::awaitable<void> manager::look_up(const std::vector<std::shared_ptr<entry>>& missing,
                                       std::chrono::milliseconds asked) {
    struct looking {
        explicit looking(asio::any_io_executor executor) : fewer(std::move(executor)) {}
        std::size_t open = 0;
        condition fewer;
    };
    const auto all = std::make_shared<looking>(executor_);
    for (const std::shared_ptr<entry>& each : missing) {
        if (std::exchange(each->looked_up, true)) {
            continue;
        }
        ++all->open;
        asio::co_spawn(
            executor_,
            [this, each, asked, all]() -> asio::awaitable<void> {
                const std::string id = each->record.sandbox_id;
                const std::string asked_as = account_.fingerprint();
                const auto look = [&id](cloud::client& on) { return on.get(id); };
                const auto got = co_await account_.ask(look);
                each->looked_up = false;
                if (is_untouched_since(*each, asked) && each->record.sandbox_id == id &&
                    asked_as == account_.fingerprint()) {
                    apply_look(*each, got);
                    save_soon();
                    pulse_->activity.notify_all();
                }
                --all->open;
                all->fewer.notify_all();
            },
            asio::detached);
    }
    asio::steady_timer patience(executor_, look_takes);
    const auto looked = [all]() -> asio::awaitable<void> {
        while (all->open != 0) {
            co_await all->fewer.wait();
        }
    };
    co_await (looked() || patience.async_wait(asio::use_awaitable));
}

// A listing under another key that shows a sandbox of ours, or one that a create in doubt has made,
// proves that the key is of the same account; and so for all records of the old key, whatever the
// platform still has of them.
void manager::rebind(const std::vector<cloud::sandbox_info>& listing) {
    std::set<std::string> proven; // fingerprints
    const auto is_older = [this](const core::sandbox_record& record) {
        return record.base_url == account_.base_url() && !record.fingerprint.empty() &&
               record.fingerprint != account_.fingerprint();
    };
    for (const auto& [key, each] : entries_) {
        const core::sandbox_record& record = each->record;
        const bool shown = std::any_of(listing.begin(), listing.end(), [&](const auto& seen) {
            return !record.sandbox_id.empty() && seen.id == record.sandbox_id &&
                   core::is_made_by(seen, options_.instance);
        });
        const bool made =
            record.create_pending && core::made_for(listing, record, options_.instance) != nullptr;
        if (is_older(record) && (shown || made)) {
            proven.insert(record.fingerprint);
        }
    }
    for (const auto& [key, each] : entries_) {
        if (is_older(each->record) && proven.contains(each->record.fingerprint)) {
            each->record.fingerprint = account_.fingerprint();
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
        record.untried = true;
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
    each.unseen = false;
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
        core::note_state(record, state);
    }
}

} // namespace sandboxd::sandbox
