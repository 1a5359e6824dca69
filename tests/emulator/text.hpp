// Bytes of a command as the JSON text that the platform makes of them.
//
// The platform's strings are UTF-8, so what is not is replaced with U+FFFD before it is sent; the
// loss is the client's problem and part of what is emulated.
#pragma once

#include <string>
#include <string_view>

namespace emulator {

enum class replacement {
    subpart,
    byte
}; // one U+FFFD for each maximal broken part (WHATWG), or one for each byte of it

// How many bytes at the end of `bytes` begin a character that is not complete (0 to 3).
std::size_t incomplete_tail(std::string_view bytes);

// Appends `bytes` as the inside of a JSON string.
void append_json_text(std::string& out, std::string_view bytes, replacement how);

// `%41` becomes `A`; with `plus_is_space` also `+` a space. False: a broken escape.
bool percent_decode(std::string_view in, std::string& out, bool plus_is_space);

} // namespace emulator
