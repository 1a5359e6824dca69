// What an exec's stream says, as plain values: no socket, no Asio, so that the decoder is pure.
#pragma once

#include "cloud/failure.hpp"

#include <string>
#include <variant>

namespace sandboxd::cloud {

struct exec_output {
    bool is_stderr = false;
    std::string text; // valid UTF-8, never empty; neighbouring lines of one stream may be joined
};
struct exec_heartbeat {};
struct exec_exited {
    int returncode = 0;
};
struct exec_refused {
    std::string message; // the terminal {"error": ...} line
};
struct exec_cut {
    failure why; // the stream ended without a terminal line: the outcome is unknown
};
using exec_event = std::variant<exec_output, exec_heartbeat, exec_exited, exec_refused, exec_cut>;

} // namespace sandboxd::cloud
