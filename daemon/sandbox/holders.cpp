// Which client processes want a sandbox kept: until they release it or have ended.
//
// They are written into the record, since they outlive the daemon: after its restart nobody may
// delete what a living client still works in. Of a one-session sandbox only its owner is (a field
// of its own): a guest's command keeps it, a guest that does nothing does not beyond orphan-grace.
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <algorithm>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

void manager::hold(const core::sandbox_key& key, sys::process_identity holder) {
    if (holder.pid == 0) {
        return;
    }
    const std::shared_ptr<entry> each = entry_for(key);
    if (each->holders.insert(holder).second && !each->record.sandbox_id.empty()) {
        save_soon(); // else whatever makes the sandbox writes it down
    }
}

void manager::let_go(entry& each, const sys::process_identity& holder) {
    if (each.holders.erase(holder) != 0) {
        save_soon();
    }
}

std::size_t manager::count_holders(entry& each) {
    std::erase_if(each.holders,
                  [](const sys::process_identity& holder) { return !sys::alive(holder); });
    return each.holders.size();
}

// The process that a one-session sandbox belongs to wants it kept as long as it lives.
std::size_t manager::count_others(entry& each, const sys::process_identity& asker) {
    count_holders(each);
    const core::owner_process& owner = each.record.owner;
    std::set<sys::process_identity> others = each.holders;
    if (!each.record.persistent && owner.pid != 0 && owner_lives(each.record)) {
        others.insert({static_cast<pid_t>(owner.pid), owner.start_time});
    }
    others.erase(asker);
    return others.size();
}

void manager::restore_holders(entry& each) {
    std::vector<core::owner_process> all = each.record.holders;
    if (!each.record.persistent && !each.record.owner_gone && each.record.owner.pid != 0) {
        all.push_back(each.record.owner);
    }
    for (const core::owner_process& kept : all) {
        const sys::process_identity holder{static_cast<pid_t>(kept.pid), kept.start_time};
        if (!boot_.empty() && kept.boot == boot_ && sys::alive(holder)) {
            each.holders.insert(holder);
        }
    }
}

core::sandbox_record manager::record_to_keep(entry& each) {
    count_holders(each);
    core::sandbox_record record = each.record;
    record.holders.clear();
    if (!record.persistent) {
        return record;
    }
    for (const sys::process_identity& holder : each.holders) {
        record.holders.push_back({holder.pid, holder.start_time, boot_});
    }
    return record;
}

// For what nobody waits for.
void manager::save_soon() {
    asio::co_spawn(executor_, save_or_complain(), asio::detached);
}

} // namespace sandboxd::sandbox
