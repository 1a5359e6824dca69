// Sandboxes of ours that no record has in use: late ones are deleted, orphans are shown, and
// adopted or deleted when a person says so.
#include "core/cloud_error.hpp"
#include "core/listing_review.hpp"
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

void manager::note_others(const std::vector<cloud::sandbox_info>& listing,
                          std::chrono::milliseconds asked) {
    // Deleted since the listing was asked for, it may still show them.
    std::erase_if(removed_, [&](const auto& one) { return one.second < asked; });
    std::vector<core::sandbox_record> records;
    for (const auto& [key, each] : entries_) {
        records.push_back(each->record);
    }
    count_all(); // what the listing before showed has run until now
    core::listing_review review = core::review_listing(listing, records, options_.instance);
    others_active_ = review.others_active;
    const auto is_removed = [this](const auto& seen) { return removed_.contains(seen.id); };
    std::erase_if(review.orphans, is_removed);
    std::erase_if(review.late, is_removed);
    orphans_ = std::move(review.orphans);
    orphans_unseen_ = false;
    std::erase_if(orphan_usage_, [this](const auto& one) { return !is_orphan(one.first); });
    for (const cloud::sandbox_info& seen : review.late) {
        delete_late(seen);
    }
}

asio::awaitable<cloud::result<void>> manager::remove_remotely(std::string id) {
    const auto remove = [&id](cloud::client& on) { return on.remove(id); };
    const auto removed = co_await account_.ask(remove);
    if (removed.has_value()) {
        removed_.insert_or_assign(id, awake());
    }
    co_return removed;
}

void manager::delete_late(const cloud::sandbox_info& seen) {
    if (!being_deleted_.insert(seen.id).second) {
        return;
    }
    spdlog::warn("sandbox {} was made by a create that nobody waits for any more: deleting it",
                 seen.id);
    asio::co_spawn(
        executor_,
        [this, id = seen.id]() -> asio::awaitable<void> {
            const auto removed = co_await remove_remotely(id);
            if (!removed.has_value()) { // the next listing shows it again
                spdlog::warn("{}", core::error_from(removed.error(), "deleting it").what());
            }
            being_deleted_.erase(id);
        },
        asio::detached);
}

bool manager::is_orphan(const std::string& id) const {
    return std::any_of(orphans_.begin(), orphans_.end(),
                       [&](const cloud::sandbox_info& each) { return each.id == id; });
}

std::vector<orphan> manager::orphans() const {
    std::vector<orphan> all;
    for (const cloud::sandbox_info& info : orphans_) {
        orphan shown{info, store_.key_of(core::digest_tag(info)), std::nullopt};
        const auto try_profile = [&](const std::string& profile) {
            const core::sandbox_key key{profile, core::task_tag(info)};
            if (!shown.key && core::is_made_for_key(info, key)) {
                shown.key = key;
            }
        };
        try_profile("default");
        for (const auto& [key, each] : entries_) {
            try_profile(key.profile);
        }
        shown.usd_per_hour = core::is_active(core::life_state_of(info.state)) ? price_of(info.plan)
                                                                              : std::optional(0.0);
        all.push_back(std::move(shown));
    }
    return all;
}

// They are of no record, and yet take places and cost money.
std::size_t manager::active_orphans() const {
    return static_cast<std::size_t>(
        std::count_if(orphans_.begin(), orphans_.end(), [](const cloud::sandbox_info& each) {
            return core::is_active(core::life_state_of(each.state));
        }));
}

cloud::sandbox_info manager::find_orphan(const std::string& id) const {
    const auto found = std::find_if(orphans_.begin(), orphans_.end(),
                                    [&](const cloud::sandbox_info& each) { return each.id == id; });
    if (found == orphans_.end()) {
        throw rpc_error(error_name::sandbox_not_found,
                        "no sandbox of ours that no record knows has the id " + id);
    }
    return *found;
}

asio::awaitable<void> manager::adopt_orphan(std::string id, core::sandbox_key key) {
    account_.require_configured();
    const cloud::sandbox_info info = find_orphan(id);
    if (!core::is_made_for_key(info, key)) {
        throw rpc_error(error_name::invalid_params, "sandbox " + id + " was not made for " +
                                                        describe(key) + "; nothing was done");
    }
    const std::shared_ptr<entry> each = entry_for(key);
    core::sandbox_record& record = each->record;
    if (each->current || !record.sandbox_id.empty() || record.create_pending) {
        rpc_error error(error_name::sandbox_busy,
                        describe(key) + " has another sandbox by now; nothing was done");
        error.sandbox_id = record.sandbox_id;
        throw error;
    }
    record.persistent = !core::is_ephemeral(info);
    record.owner_gone = !record.persistent; // whoever it was made for is not known any more
    record.plan = info.plan;
    record.base_url = account_.base_url();
    record.fingerprint = account_.fingerprint();
    // Which sandbox of its creation was in use is not known any more: without the creation's id
    // none of the others is taken for a late one, and deleted.
    record.creation_id.clear();
    record.attempt = 0;
    record.timeout = core::timeout_tag(info);
    count_all();
    record.usage = orphan_usage_[id];
    orphan_usage_.erase(id);
    record.sandbox_id = id;
    record.created_at = info.created_at;
    record.runs_on = info.plan;
    record.state = core::life_state_of(info.state);
    record.untried = false; // it may hold somebody's files
    record.state_lost = false;
    record.first_boot = ++record.generation; // what ran before is of an unknown boot
    each->used(awake());
    std::erase_if(orphans_, [&](const cloud::sandbox_info& one) { return one.id == id; });
    spdlog::info("{}: sandbox {} is adopted", describe(key), id);
    pulse_->activity.notify_all();
    co_await save();
}

// Asking is a use: the platform counts its time-out anew.
asio::awaitable<background_answer> manager::look_into_orphan(std::string id) {
    account_.require_configured();
    const cloud::sandbox_info info = find_orphan(id);
    const core::life_state state = core::life_state_of(info.state);
    if (state == core::life_state::stopped || state == core::life_state::failed) {
        co_return background_answer{core::background::none, {}};
    }
    if (probe_ == nullptr) {
        co_return background_answer{core::background::unknown, "nobody can tell"};
    }
    co_return co_await probe_->ask(id);
}

asio::awaitable<void> manager::terminate_orphan(std::string id) {
    account_.require_configured();
    find_orphan(id);
    const auto removed = co_await remove_remotely(id);
    if (!removed.has_value() && removed.error().kind != cloud::failure_kind::not_found) {
        throw core::plain_error_from(removed.error(), "deleting the sandbox");
    }
    count_all();
    orphan_usage_.erase(id);
    std::erase_if(orphans_, [&](const cloud::sandbox_info& one) { return one.id == id; });
    spdlog::info("sandbox {}, which no record knew, is deleted", id);
}

} // namespace sandboxd::sandbox
