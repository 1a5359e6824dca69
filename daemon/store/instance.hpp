// Which daemon this is, among all that share an account.
//
// The id is made once and lives in a file of its own, so that losing the state does not lose the
// proof of what is ours. It is bound to the machine: a home directory cloned to another machine
// gets a new id there, and leaves the sandboxes in the state it was cloned with to the daemon that
// made them, so that the two never take each other's for their own.
//
// Clones of a machine that has no id (some containers) are not told apart. Whatever else could tell
// (addresses, boot ids, inodes, the D-Bus id of an image that is built anew) also changes on one
// and the same machine, and a daemon that took itself for its clone would lose its sandboxes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sandboxd::store {

struct instance {
    std::string id;     // 32 hexadecimal digits
    bool fresh = false; // made just now: no sandbox can carry it yet
    // What a person should know: which files were set aside, and why. Health shows it.
    std::vector<std::string> complaints;
};

// The id kept in `<state dir>/instance`, made if it is missing. An unreadable file is set aside as
// instance.bad; one of another machine as well, and state.json with it, which must not have been
// read yet. `machine_id`: of this machine, any text without white space; empty if it has none.
// Throws std::system_error.
instance load_instance(const std::filesystem::path& state_dir, const std::string& machine_id);

// /etc/machine-id, hashed as its documentation asks (man 5 machine-id: it should not be shown to
// others as it is).
std::string hashed_machine_id();

} // namespace sandboxd::store
