// JSON strings at the speed of memory, for what comes by the gigabyte: the text of commands'
// output.
//
// Written because a general parser and serializer go byte by byte wherever a string holds escapes,
// and output holds one a line. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd {

// Appends `utf8` as a JSON string with its quotes. Everything but quotes, backslashes and control
// characters stands for itself. `utf8` must be valid; what is not is passed on as it is.
void append_json_string(std::string& to, std::string_view utf8);

// Appends what the JSON string stands for whose text begins behind its opening quote, and returns
// the index of its closing quote in `text`. Nothing: the string is not whole, or holds what a
// general parser has to judge (bytes that are not UTF-8, surrogates, control characters, unknown
// escapes); some of it may have been appended then.
std::optional<std::size_t> append_json_unescaped(std::string& to, std::string_view text);

} // namespace sandboxd
