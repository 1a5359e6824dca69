#include "cloud/surrogates.hpp"

#include <cstdint>
#include <optional>

namespace sandboxd::cloud {

namespace {

std::optional<std::uint16_t> hex4(std::string_view text) noexcept {
    if (text.size() < 4) return std::nullopt;
    std::uint16_t out = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        const char c = text[i];
        int digit = 0;
        if (c >= '0' && c <= '9') {
            digit = c - '0';
        } else if (c >= 'a' && c <= 'f') {
            digit = c - 'a' + 10;
        } else if (c >= 'A' && c <= 'F') {
            digit = c - 'A' + 10;
        } else {
            return std::nullopt;
        }
        out = static_cast<std::uint16_t>(out * 16 + digit);
    }
    return out;
}

// The code unit if `text` begins with \uXXXX.
std::optional<std::uint16_t> escape_at(std::string_view text) noexcept {
    return text.size() >= 6 && text[0] == '\\' && text[1] == 'u' ? hex4(text.substr(2))
                                                                 : std::nullopt;
}

} // namespace

std::string repair_surrogate_escapes(std::string_view json) {
    std::string out;
    out.reserve(json.size());
    for (std::size_t at = 0; at < json.size();) {
        if (json[at] != '\\' || at + 1 >= json.size()) {
            out += json[at++];
            continue;
        }
        const auto unit = escape_at(json.substr(at));
        if (!unit) {
            out += json.substr(
                at, 2); // an escape of one letter; an escaped backslash must not begin the next one
            at += 2;
            continue;
        }
        if (*unit < 0xd800 || *unit > 0xdfff) {
            out += json.substr(at, 6);
            at += 6;
            continue;
        }
        const auto partner = escape_at(json.substr(at + 6));
        if (*unit <= 0xdbff && partner && *partner >= 0xdc00 && *partner <= 0xdfff) {
            out += json.substr(at, 12);
            at += 12;
        } else {
            out += "\\ufffd";
            at += 6;
        }
    }
    return out;
}

} // namespace sandboxd::cloud
