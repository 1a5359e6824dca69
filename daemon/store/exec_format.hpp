// A command's record as a line of text. Pure.
#pragma once

#include "core/exec_record.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::store {

// One line, without its newline. Of the exit's error only the name is kept.
std::string format_exec_record(const core::exec_record& record);
// Nothing: this is none (a torn or foreign line).
std::optional<core::exec_record> parse_exec_record(std::string_view line);

} // namespace sandboxd::store
