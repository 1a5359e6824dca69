// Which daemon this is, among all that share an account.
//
// The id is made once and lives in a file of its own, so that losing the state does not lose the proof of what is ours.
// It is bound to the machine: a home directory cloned to another machine gets a new id there, and the two daemons
// never take each other's sandboxes for their own.
#pragma once

#include <filesystem>
#include <string>

namespace sandboxd::store {

// The id kept in `<state dir>/instance`, made if it is missing, of another machine, or unreadable (the old file is then
// kept as instance.bad). 32 hexadecimal digits. `machine_id`: of this machine, any text without white space; empty if
// it has none. Throws std::system_error.
std::string load_instance(const std::filesystem::path& state_dir, const std::string& machine_id);

// /etc/machine-id, hashed as its documentation asks (man 5 machine-id: it should not be shown to others as it is).
std::string hashed_machine_id();

} // namespace sandboxd::store
