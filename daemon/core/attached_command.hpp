// How a command with a directory, an environment and an input is said to a platform that knows an
// argv only.
//
// The platform's exec has no cwd, no environment and no stdin (S, P), so a POSIX shell in front of
// the command makes them. This is the plain attached form: the process lives inside the platform's
// own exec.
//
// Whatever belongs to the command carries its exec id in the environment variable
// DEEPINFRA_SANDBOXD_EXEC; that is how `kill_command` finds its processes again, whatever session
// or parent they have by then. A process that empties its environment *and* has lost its parent
// escapes it.
#pragma once

#include "core/command.hpp"

#include <string>
#include <vector>

namespace sandboxd::core {

// Throws rpc_error: invalid_params for a NUL byte or a name no environment can hold,
// argument_too_long for what the kernel would refuse. Nothing has run then.
prepared_command build_attached(const command_spec& spec, const std::string& exec_id);

// Ends every process of that exec: stops them until no new one appears, then kills. With another
// signal than kill it sends that first and gives them a second. Its exit code is 0 when none is
// left, 1 when some could not be ended.
std::vector<std::string> kill_command(const std::string& exec_id, kill_signal signal);

} // namespace sandboxd::core
