// UTF-8 checked and mended: what a foreign server sends must not break what we send on.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sandboxd::cloud {

bool is_utf8(std::string_view text) noexcept;

// Each maximal part that is not UTF-8 becomes one U+FFFD, as the Unicode standard (3.9) advises and
// the API does (S).
std::string repair_utf8(std::string_view text);

// The largest length <= `limit` at which `text` (valid UTF-8) can be cut between characters.
std::size_t utf8_floor(std::string_view text, std::size_t limit) noexcept;

// The same for the `\uXXXX` escapes of one JSON text: a surrogate that has no partner becomes
// \ufffd. JSON's grammar allows them (RFC 8259, 8.2), servers that count in UTF-16 cut between
// them, and strict parsers refuse them.
std::string repair_surrogate_escapes(std::string_view json);

} // namespace sandboxd::cloud
