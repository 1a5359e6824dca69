// Which account a record or a client belongs to, without telling the key.
#pragma once

#include "base/secret.hpp"

#include <string>
#include <string_view>

namespace sandboxd {

// SHA-256 of `bytes` as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

// The first 16 hexadecimal digits of the SHA-256 of "deepinfra-sandboxd key v1\n" and the key;
// clients compute the same.
std::string key_fingerprint(const secret& api_key);

} // namespace sandboxd
