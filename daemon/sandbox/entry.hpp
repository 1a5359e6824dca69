// What the manager keeps about one key while the daemon lives. Only sandbox/ looks inside.
#pragma once

#include "sandbox/manager.hpp"

#include <utility>

namespace sandboxd::sandbox {

enum class operation_kind : int { bring_up, stop, terminate };

// One bring-up or shut-down of an entry, shared by all who wait for it.
struct operation {
    operation_kind kind = operation_kind::bring_up;
    wanted want;                        // of a bring-up
    std::chrono::milliseconds since{0}; // manager's clock
    std::string doing;                  // for people
    bool done = false;
    std::optional<rpc_error> error;
    ensured outcome;
};

class entry {
public:
    entry(boost::asio::any_io_executor executor, core::sandbox_key key)
        : changed(std::move(executor)) {
        record.key = std::move(key);
    }

    core::sandbox_record record;
    std::shared_ptr<operation> current;     // the one under way, if any
    std::vector<std::string> leases;        // ids of the execs that hold it, oldest first
    std::chrono::milliseconds last_used{0}; // manager's clock
    std::set<sys::process_identity> holders;
    bool state_lost = false; // its sandbox was found gone, and nobody has been told yet
    condition changed;       // the operation moved on or ended, a lease went
};

} // namespace sandboxd::sandbox
