// Where bytes may be cut so that what is in front stays valid UTF-8 (RFC 3629: no overlong forms,
// no surrogates).
#pragma once

#include <cstddef>
#include <string_view>

namespace sandboxd::core {

// The length of the longest prefix of `bytes` that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view bytes) noexcept;

inline bool is_utf8(std::string_view bytes) noexcept {
    return valid_utf8_prefix(bytes) == bytes.size();
}

} // namespace sandboxd::core
