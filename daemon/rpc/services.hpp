// What the methods work with: the parts of the daemon, wired by serve.cpp. Owns nothing; everything
// in it outlives the server.
#pragma once

#include "base/condition.hpp"
#include "exec/registry.hpp"
#include "sandbox/account.hpp"
#include "sandbox/manager.hpp"
#include "sync/service.hpp"

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace sandboxd::rpc {

struct services {
    sandbox::account& account;
    sandbox::manager& manager;
    exec::registry& execs;
    sync::service& files;

    std::string instance;
    std::filesystem::path socket;
    std::filesystem::path state_dir;
    int max_active = 5;
    std::chrono::steady_clock::time_point started_at;
    std::vector<std::string> complaints; // found at the start: state files that could not be read

    bool stopping = false;         // no new work is taken
    std::uint64_t connections = 0; // since the start
    std::uint64_t requests = 0;
    condition asked; // when there is one more
};

} // namespace sandboxd::rpc
