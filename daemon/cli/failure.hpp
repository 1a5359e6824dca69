// How a verb ends when it cannot do its work: an exit code and two sentences for people.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace sandboxd::cli {

// The interface's exit codes. `exec` uses 124, 125 and 130 and passes its command's own code on;
// the other verbs use the rest.
enum class exit_code : int {
    ok = 0,
    error = 1, // or degraded
    usage = 2,
    not_running = 3,
    unresponsive = 4, // or incompatible
    timed_out = 124,
    failed = 125,
    cancelled = 130,
};

// The name of the failure that the daemon has closed the connection: it has ended, or is about to.
inline constexpr std::string_view connection_closed = "connection_closed";

class failure : public std::runtime_error {
public:
    // `what`: what happened. `hint`: what to do about it; may be empty. `name`: of the daemon's
    // error, if it is one, or connection_closed.
    failure(exit_code code, const std::string& what, std::string hint = {}, std::string name = {})
        : std::runtime_error(what), code_(code), hint_(std::move(hint)), name_(std::move(name)) {}

    exit_code code() const noexcept { return code_; }
    const std::string& hint() const noexcept { return hint_; }
    const std::string& name() const noexcept { return name_; }

private:
    exit_code code_;
    std::string hint_;
    std::string name_;
};

// There is no daemon at the other end any more: it closed the connection, or is silent. Connecting
// again may find it, or its successor.
class daemon_gone : public failure {
public:
    using failure::failure;
};

// The command line makes no sense. `verb` (may be empty) says whose help has the answer.
class usage_error : public failure {
public:
    usage_error(const std::string& what, const std::string& verb)
        : failure(exit_code::usage, what,
                  "see: deepinfra-sandboxd " + (verb.empty() ? "" : verb + " ") + "--help") {}
};

} // namespace sandboxd::cli
