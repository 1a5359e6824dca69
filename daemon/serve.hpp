// The daemon: wires the parts and runs them until it is told to stop.
#pragma once

#include "sys/settings.hpp"

namespace sandboxd {

// Returns the process's exit code: 0 after SIGTERM or SIGINT. Throws what keeps it from starting:
// sys::already_running, sys::config_error, std::system_error, std::runtime_error, each with a text
// for people.
int serve(const sys::settings& settings);

} // namespace sandboxd
