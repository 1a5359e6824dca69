#include "cloud/utf8.hpp"

#include <cstdint>
#include <optional>

namespace sandboxd::cloud {

namespace {

struct step {
    std::size_t length; // bytes to go on by, at least 1
    bool valid;
};

// What stands at the beginning of `text`, which is not empty: a character, or the maximal part of a
// broken one.
step next_character(std::string_view text) noexcept {
    const auto at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = at(0);
    if (first < 0x80) return {1, true};
    std::size_t length = 0;
    unsigned char low =
        0x80; // bounds of the second byte: no overlong forms, no surrogates, nothing over U+10FFFF
    unsigned char high = 0xbf;
    if (first >= 0xc2 && first <= 0xdf) {
        length = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
        length = 3;
        if (first == 0xe0) low = 0xa0;
        if (first == 0xed) high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
        length = 4;
        if (first == 0xf0) low = 0x90;
        if (first == 0xf4) high = 0x8f;
    } else {
        return {1, false};
    }
    for (std::size_t i = 1; i < length; ++i) {
        if (i >= text.size() || at(i) < low || at(i) > high) return {i, false};
        low = 0x80;
        high = 0xbf;
    }
    return {length, true};
}

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

bool is_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        const step s = next_character(text);
        if (!s.valid) return false;
        text.remove_prefix(s.length);
    }
    return true;
}

std::string repair_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const step s = next_character(text);
        out += s.valid ? text.substr(0, s.length) : std::string_view("\xef\xbf\xbd");
        text.remove_prefix(s.length);
    }
    return out;
}

std::size_t utf8_floor(std::string_view text, std::size_t limit) noexcept {
    if (limit >= text.size()) return text.size();
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80)
        --limit;
    return limit;
}

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
