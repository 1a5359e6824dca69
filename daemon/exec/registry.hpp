// Finds commands by their id, and forgets those that ended long ago.
//
// Owns the sessions; lives as long as the daemon. The newest ended commands are remembered, so that
// an id is not taken for a new one by mistake and exec.list can still tell how they ended.
#pragma once

#include "exec/session.hpp"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sandboxd::exec {

class registry {
public:
    registry(boost::asio::any_io_executor executor, sandbox::manager& manager,
             sandbox::account& account, core::exec_limits limits);

    // Throws rpc_error: exec_id_in_use, too_many_requests, or what session's constructor throws.
    std::shared_ptr<session> start(request request, std::weak_ptr<subscriber> subscriber);
    std::shared_ptr<session> find(const std::string& exec_id); // throws exec_not_found
    std::vector<std::shared_ptr<session>> list(const std::optional<core::sandbox_key>& key);
    std::size_t running() const;
    shim_keeper& shims() noexcept { return shims_; }
    const shim_keeper& shims() const noexcept { return shims_; }
    std::uint64_t started() const noexcept { return started_; }

    // The daemon stops: every command that has not ended is told to its client as lost or as not
    // run.
    void stop_all();

private:
    void make_room(); // throws too_many_requests

    static constexpr std::size_t most = 4096; // sessions at once, ended ones included

    boost::asio::any_io_executor executor_;
    sandbox::manager& manager_;
    sandbox::account& account_;
    core::exec_limits limits_;
    shim_keeper shims_;
    std::map<std::string, std::shared_ptr<session>> sessions_;
    std::deque<std::string> order_; // ids, oldest first
    std::uint64_t started_ = 0;
};

} // namespace sandboxd::exec
