// What people see of the sandboxes: views, and why each is awake.
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <algorithm>

namespace sandboxd::sandbox {
namespace {

// The platform deletes what has been stopped for seven days (D).
constexpr std::chrono::seconds expires_soon = std::chrono::hours(24 * 6);

std::string in_seconds(std::chrono::milliseconds time) {
    return std::to_string((time.count() + 999) / 1000) + " s";
}

std::string commands_running(std::size_t count) {
    return count == 1 ? "1 command is running" : std::to_string(count) + " commands are running";
}

} // namespace

view manager::view_of(const entry& each) const {
    view shown{each.record, std::nullopt, {}, why_awake(each), std::nullopt, each.holders.size()};
    for (const holding& command : each.leases) {
        shown.running.push_back(command.exec_id);
    }
    if (given_up(each) && is_billed(each)) {
        shown.usd_per_hour = std::nullopt;
    } else {
        shown.usd_per_hour = is_billed(each) ? price_of(each.record) : std::optional(0.0);
    }
    if (is_idle(each) && is_of_account(each)) {
        shown.idle = awake() - each.last_used;
    }
    return shown;
}

std::string manager::why_awake(const entry& each) const {
    if (each.current) {
        return each.current->doing;
    }
    if (each.record.state == core::life_state::running && !is_of_account(each)) {
        return account_.configured()
                   ? "not watched: it belongs to another account than the daemon's key"
                   : "not watched: the daemon has no key";
    }
    if (!each.leases.empty()) {
        return commands_running(each.leases.size());
    }
    if (each.record.state != core::life_state::running) {
        return {};
    }
    using std::chrono::milliseconds;
    const milliseconds idle = awake() - each.last_used;
    const auto rest = [&](milliseconds limit) {
        return in_seconds(std::max(limit - idle, milliseconds(0)));
    };
    const std::string used = "used until " + std::to_string(idle.count() / 1000) + " s ago";
    switch (each.work.what) {
    case core::background::running:
        return "in the background: " + each.work.text + "; " + used + ", kept for at most " +
               rest(std::max(idle_stop(each.record), options_.background_max)) + " more";
    case core::background::failed:
        return used + ", what runs in the background could not be asked (" + each.work.text + ")";
    case core::background::unknown:
        return used + ", stops in " + rest(idle_stop(each.record)) +
               "; what runs in the background is not known: " + each.work.text;
    default:
        return used + ", stops in " + rest(idle_stop(each.record));
    }
}

view manager::get(const selector& which) {
    const std::shared_ptr<entry> each = find(which);
    count_holders(*each);
    return view_of(*each);
}

std::vector<view> manager::list() {
    std::vector<view> all;
    for (const auto& [key, each] : entries_) {
        if (each->current || each->record.state != core::life_state::absent ||
            each->record.create_pending) {
            count_holders(*each);
            all.push_back(view_of(*each));
        }
    }
    return all;
}

std::vector<core::sandbox_key> manager::about_to_expire() const {
    std::vector<core::sandbox_key> keys;
    for (const auto& [key, each] : entries_) {
        const core::sandbox_record& record = each->record;
        if (record.state == core::life_state::stopped && record.stopped_since != 0 &&
            cloud_time() - record.stopped_since >= expires_soon.count()) {
            keys.push_back(key);
        }
    }
    return keys;
}

int manager::active() const {
    const auto ours = std::count_if(entries_.begin(), entries_.end(), [this](const auto& each) {
        const core::sandbox_record& record = each.second->record;
        return is_of_account(*each.second) &&
               (core::is_active(record.state) || record.create_pending);
    });
    return others_active_ + static_cast<int>(active_orphans()) + static_cast<int>(ours);
}

std::vector<core::sandbox_record> manager::of_other_accounts() const {
    std::vector<core::sandbox_record> others;
    for (const auto& [key, each] : entries_) {
        const core::sandbox_record& record = each->record;
        if ((!record.sandbox_id.empty() || record.create_pending) && !is_of_account(*each)) {
            others.push_back(record);
        }
    }
    return others;
}

bool manager::is_of_other_account(const core::sandbox_key& key) const {
    const auto found = entries_.find(key);
    return found != entries_.end() && !found->second->record.sandbox_id.empty() &&
           !is_of_account(*found->second);
}

std::vector<std::string> manager::complaints() const {
    std::vector<std::string> texts;
    if (reconcile_trouble_) {
        texts.push_back("The sandboxes could not be compared with what the platform says: " +
                        std::string(reconcile_trouble_->what()) + ".");
    }
    return texts;
}

} // namespace sandboxd::sandbox
