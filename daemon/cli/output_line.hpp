// The message that comes by the gigabyte, exec.output with text, read at the speed of memory.
//
// Written because a general parser takes a long string apart byte by byte wherever it holds
// escapes. Pure.
#pragma once

#include <boost/json/object.hpp>

#include <optional>
#include <string_view>

namespace sandboxd::cli {

// The message on this line, without its newline. Nothing: it is another one, or written in another
// way; a general parser has to read it. Whatever is returned is what that parser would have read.
std::optional<boost::json::object> read_output_line(std::string_view line);

} // namespace sandboxd::cli
