// Base64 (RFC 4648, standard alphabet, padded): how bytes travel in JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sandboxd {

std::string base64_encode(std::string_view bytes);

// The decoded bytes, or nothing if `text` is not strict base64: the length must be a multiple of 4,
// padding must be present, and no white space is allowed.
std::optional<std::string> base64_decode(std::string_view text);

} // namespace sandboxd
