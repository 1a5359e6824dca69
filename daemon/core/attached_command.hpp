// How a command with a directory, an environment and an input is said to a platform that knows an argv only.
//
// The platform's exec has no cwd, no environment and no stdin (S, P), so a POSIX shell in front of the command makes
// them. This is the plain attached form: the process lives inside the platform's own exec.
//
// Whatever belongs to the command carries its exec id in the environment variable DEEPINFRA_SANDBOXD_EXEC; that is how
// `kill_command` finds its processes again, whatever session or parent they have by then. A process that empties its
// environment *and* has lost its parent escapes it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sandboxd::core {

inline constexpr std::size_t max_argument = 131'071; // bytes of one argv element: Linux' MAX_ARG_STRLEN less its NUL

struct command_spec {
    // Exactly one of the two is set. Bytes, without NUL.
    std::vector<std::string> argv;
    std::optional<std::string> script; // run by bash
    bool login = false;                // the script's bash is a login shell

    std::string cwd; // empty: /workspace. One that is not there falls back to /workspace, with a notice on stderr
    std::vector<std::pair<std::string, std::string>> env; // on top of the sandbox's own
    std::optional<std::string> stdin_data;                // nothing or empty: immediate end of file
    bool merge_output = false;                            // stderr goes where stdout goes
};

struct upload {
    std::string path; // in the sandbox, below /workspace
    std::string bytes;
};

struct attached_command {
    std::vector<std::string> argv; // valid UTF-8, each at most max_argument
    std::vector<upload> uploads;   // to be there before it runs; the command deletes them itself
};

// Throws rpc_error: invalid_params for a NUL byte or a name no environment can hold, argument_too_long for what the
// kernel would refuse. Nothing has run then.
attached_command build_attached(const command_spec& spec, const std::string& exec_id);

enum class kill_signal { interrupt, terminate, kill }; // each sharper than the one before it

// Ends every process of that exec: stops them until no new one appears, then kills. With another signal than kill it
// sends that first and gives them a second. Its exit code is 0 when none is left, 1 when some could not be ended.
std::vector<std::string> kill_command(const std::string& exec_id, kill_signal signal);

} // namespace sandboxd::core
