// UTF-8 checked, cut and mended (RFC 3629: no overlong forms, no surrogates, nothing over
// U+10FFFF).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sandboxd {

// The length of the longest prefix of `bytes` that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view bytes) noexcept;

inline bool is_utf8(std::string_view bytes) noexcept {
    return valid_utf8_prefix(bytes) == bytes.size();
}

// Each maximal part that is not UTF-8 becomes one U+FFFD, as the Unicode standard (3.9) advises and
// the API does (S).
std::string repair_utf8(std::string_view text);

// The largest length <= `limit` at which `text` (valid UTF-8) can be cut between characters.
std::size_t utf8_floor(std::string_view text, std::size_t limit) noexcept;

} // namespace sandboxd
