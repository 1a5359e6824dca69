// What the end of a command (exec.exit) means to people and to the shell. Pure.
#pragma once

#include "cli/failure.hpp"

#include <boost/json/object.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::cli {

namespace json = boost::json;

struct exec_ending {
    std::vector<std::string> remarks; // to be said in any case
    int code = 0;                     // the process's, unless
    std::optional<failure> trouble;   // the daemon or the platform failed
};

// `exit`: the params of exec.exit. `missing`: bytes of output that did not arrive.
exec_ending read_ending(const json::object& exit, std::uint64_t missing);

// What a failure before the command was sent, or a refusal, leaves to be said: users must be told
// whether it ran.
inline constexpr std::string_view has_not_run = "the command has not run";
failure with_remark(const failure& why, std::string_view remark);

// The daemon ended before it got to send the command: it has not run, and exec.start with `resume`
// runs it.
bool was_not_sent(const json::object& exit);

} // namespace sandboxd::cli
