#include "exec/registry.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::exec {

registry::registry(boost::asio::any_io_executor executor, sandbox::manager& manager,
                   sandbox::account& account, core::exec_limits limits)
    : executor_(std::move(executor)), manager_(manager), account_(account), limits_(limits),
      shims_(executor_, account) {}

std::shared_ptr<session> registry::start(request request, std::weak_ptr<subscriber> subscriber) {
    const std::string id = request.exec_id;
    if (sessions_.contains(id)) {
        throw rpc_error(error_name::exec_id_in_use,
                        "a command with the id '" + id + "' has been started already");
    }
    make_room();
    auto started = std::make_shared<session>(executor_, manager_, account_, shims_, limits_,
                                             std::move(request), std::move(subscriber));
    sessions_.emplace(id, started);
    order_.push_back(id);
    ++started_;
    started->start();
    return started;
}

std::shared_ptr<session> registry::find(const std::string& exec_id) {
    const auto found = sessions_.find(exec_id);
    if (found == sessions_.end()) {
        throw rpc_error(error_name::exec_not_found, "no command has the id '" + exec_id + "'");
    }
    return found->second;
}

std::vector<std::shared_ptr<session>> registry::list(const std::optional<core::sandbox_key>& key) {
    std::vector<std::shared_ptr<session>> all;
    for (const auto& [id, each] : sessions_) {
        if (!key || each->key() == *key) {
            all.push_back(each);
        }
    }
    return all;
}

std::size_t registry::running() const {
    return static_cast<std::size_t>(std::count_if(
        sessions_.begin(), sessions_.end(), [](const auto& each) { return !each.second->done(); }));
}

void registry::stop_all() {
    for (const auto& [id, each] : sessions_) {
        each->stop_with_daemon();
    }
}

void registry::make_room() {
    if (sessions_.size() < most) {
        return;
    }
    const auto oldest = std::find_if(order_.begin(), order_.end(), [this](const std::string& id) {
        return sessions_.at(id)->settled();
    });
    if (oldest == order_.end()) {
        throw rpc_error(error_name::too_many_requests,
                        std::to_string(most) + " commands are running; this one has not run");
    }
    sessions_.erase(*oldest);
    order_.erase(oldest);
}

} // namespace sandboxd::exec
