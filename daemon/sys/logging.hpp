// The log: spdlog's default logger on stderr.
//
// Under systemd (JOURNAL_STREAM names our stderr) each line begins with its priority, `<6>`, and
// journald keeps the time; elsewhere with time and level. Control characters in messages are
// escaped: text that comes from a sandbox cannot forge a line.
#pragma once

#include "sys/settings.hpp"

namespace sandboxd::sys {

// Call once, before the first line. Use spdlog::info() and its siblings afterwards.
void init_logging(log_level level);

} // namespace sandboxd::sys
