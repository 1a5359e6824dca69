// One command on our stdout and stderr, from wherever its output is to begin until its end: what
// `exec` and `attach` share.
#pragma once

#include "cli/exec_input.hpp"
#include "cli/verb.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace sandboxd::cli {

struct exec_call {
    // The most bytes of output that the daemon sends ahead of our writing.
    static constexpr std::uint64_t window = 1u << 20;

    std::string exec_id;
    // Params of exec.start. The command is ours then: an interrupt, or a reader that goes, ends it.
    // Nothing: it was started before, and is only looked at.
    std::optional<json::object> start;
    std::uint64_t offset = 0;        // position where its output is to begin
    std::optional<exec_input> input; // our stdin, to be passed on
    // How long a daemon that is gone is waited for.
    std::chrono::milliseconds patience;
};

// Shows the command and answers the exit code. `daemon` may be lost on the way: it is connected
// again, nothing is shown twice. Throws a failure where the daemon or the platform failed; what is
// then known of the command is in its text.
int show_command(const context&, connection daemon, exec_call);

// --reconnect, and what it was given. Throws usage_error.
inline constexpr flag reconnect_flag = {"reconnect", "TIME",
                                        "wait so long for a daemon that goes away [default: 30s]"};
std::chrono::milliseconds patience_of(const arguments&, const char* verb);

} // namespace sandboxd::cli
