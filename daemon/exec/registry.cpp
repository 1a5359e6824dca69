#include "exec/registry.hpp"

#include "core/exec_forgetting.hpp"
#include "core/shim_command.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace sandboxd::exec {
namespace {

bool may_run(const core::exec_record& record) {
    return record.phase == core::exec_phase::sent || record.phase == core::exec_phase::heard;
}

std::int64_t unix_now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

} // namespace

registry::registry(boost::asio::any_io_executor executor, sandbox::manager& manager,
                   sandbox::account& account, registry_options options)
    : around_{executor,
              manager,
              account,
              shims_,
              options.limits,
              options.state_dir,
              options.stop_if_unkillable,
              [this](const core::exec_record& record) { keep(record); },
              options.marks},
      shims_(executor, account, options.shims), journal_(options.state_dir) {}

void registry::restore() {
    std::vector<core::exec_record> records = journal_.load();
    if (!journal_.trouble().empty()) {
        spdlog::error(
            "the journal of commands cannot be read, so commands of before are not known: {}",
            journal_.trouble());
        return;
    }
    if (records.size() > most) {
        std::vector<const core::exec_record*> over;
        for (const core::exec_record& record : records) {
            if (!may_run(record)) {
                over.push_back(&record);
            }
        }
        const std::set<std::string> gone =
            core::forgotten_first(std::move(over), records.size() - most, unix_now());
        std::erase_if(records, [&gone](const core::exec_record& each) {
            return gone.contains(each.exec_id);
        });
    }
    if (!records.empty()) {
        journal_.rewrite(records);
    }
    for (core::exec_record& record : records) {
        order_.push_back(record.exec_id);
        if (!may_run(record)) {
            over_.emplace(record.exec_id, std::move(record));
            continue;
        }
        spdlog::info("exec {} was running when the daemon ended: looking for it", record.exec_id);
        const std::string id = record.exec_id;
        const auto restored = std::make_shared<session>(around_, std::move(record));
        sessions_.emplace(id, restored);
        restored->resume();
    }
}

const core::exec_record* registry::record_of(const std::string& exec_id) const {
    if (const auto found = sessions_.find(exec_id); found != sessions_.end()) {
        return &found->second->record();
    }
    const auto over = over_.find(exec_id);
    return over == over_.end() ? nullptr : &over->second;
}

registry::start_outcome registry::start(request request, view_request view, bool resume) {
    const std::string id = request.exec_id;
    const core::exec_record* before = record_of(id);
    if (before != nullptr &&
        (before->key != request.key ||
         before->digest != core::command_digest(request.command, request.timeout))) {
        throw rpc_error(error_name::exec_id_in_use,
                        "a command with the id '" + id +
                            "' and other arguments was started before; this one has not run");
    }
    // Accepted by an earlier daemon that died before it sent it.
    const bool unsent = before != nullptr && known(id)->never_sent();
    if (before != nullptr && !unsent) {
        return {known(id)->attach(std::move(view)), true};
    }
    if (resume && !unsent) {
        throw rpc_error(error_name::exec_not_found, "nothing is known of a command with the id '" +
                                                        id + "'; it was not run again");
    }
    if (unsent) {
        request.asked_in = known(id)->record().asked_in;
    } else {
        make_room();
    }
    auto fresh = std::make_shared<session>(around_, std::move(request));
    start_outcome outcome{fresh->attach(std::move(view)), false};
    if (!unsent) {
        order_.push_back(id);
    }
    sessions_.insert_or_assign(id, fresh);
    ++started_;
    fresh->start();
    return outcome;
}

std::shared_ptr<session> registry::known(const std::string& exec_id) {
    if (const auto found = sessions_.find(exec_id); found != sessions_.end()) {
        return found->second;
    }
    const auto record = over_.find(exec_id);
    if (record == over_.end()) {
        return nullptr;
    }
    auto again = std::make_shared<session>(around_, record->second);
    over_.erase(record);
    sessions_.emplace(exec_id, again);
    ended_.push_back(exec_id);
    return again;
}

std::shared_ptr<session> registry::find(const std::string& exec_id) {
    const std::shared_ptr<session> found = known(exec_id);
    if (!found) {
        throw rpc_error(error_name::exec_not_found, "no command has the id '" + exec_id + "'");
    }
    return found;
}

std::vector<std::shared_ptr<session>> registry::list(const std::optional<core::sandbox_key>& key) {
    std::vector<std::shared_ptr<session>> all;
    for (const std::string& id : order_) {
        const core::exec_record* record = record_of(id);
        if (record == nullptr || (key && record->key != *key)) {
            continue;
        }
        const auto found = sessions_.find(id);
        all.push_back(found != sessions_.end() ? found->second
                                               : std::make_shared<session>(around_, *record));
    }
    return all;
}

std::size_t registry::running() const {
    return static_cast<std::size_t>(std::count_if(
        sessions_.begin(), sessions_.end(), [](const auto& each) { return !each.second->done(); }));
}

void registry::keep(const core::exec_record& record) {
    const bool incomplete = !journal_.trouble().empty();
    journal_.append(record);
    const bool healed = incomplete && journal_.trouble().empty(); // but for what was lost meanwhile
    if (healed || journal_.overgrown(order_.size())) {
        std::vector<core::exec_record> all;
        for (const std::string& id : order_) {
            if (const core::exec_record* each = record_of(id)) {
                all.push_back(*each);
            }
        }
        journal_.rewrite(all);
    }
    if (record.phase == core::exec_phase::ended && !record.forgotten) {
        if (std::find(ended_.begin(), ended_.end(), record.exec_id) == ended_.end()) {
            ended_.push_back(record.exec_id); // its end may be told anew, as more is known
        }
        settle();
    }
}

// Of the oldest ended ones, beyond some, only the records stay.
void registry::settle() {
    for (std::size_t look = ended_.size(); look > 0 && ended_.size() > most_idle; --look) {
        const std::string id = std::move(ended_.front());
        ended_.pop_front();
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) {
            continue;
        }
        if (!found->second->settled()) {
            ended_.push_back(id);
            continue;
        }
        over_.emplace(id, found->second->record());
        sessions_.erase(found);
    }
}

void registry::make_room() {
    if (order_.size() < most) {
        return;
    }
    std::vector<const core::exec_record*> over;
    for (const std::string& id : order_) {
        const auto found = sessions_.find(id);
        const core::exec_record* const record = record_of(id);
        if (record != nullptr && (found == sessions_.end() || found->second->settled())) {
            over.push_back(record);
        }
    }
    if (over.empty()) {
        throw rpc_error(error_name::too_many_requests,
                        std::to_string(most) + " commands are running; this one has not run");
    }
    for (const std::string& id : core::forgotten_first(std::move(over), at_a_time, unix_now())) {
        sessions_.erase(id);
        over_.erase(id);
        std::erase(order_, id);
    }
}

} // namespace sandboxd::exec
