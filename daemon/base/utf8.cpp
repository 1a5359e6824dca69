#include "base/utf8.hpp"

#include <array>
#include <cstdint>
#include <cstring>

namespace sandboxd {
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

} // namespace

std::size_t valid_utf8_prefix(std::string_view bytes) noexcept {
    std::size_t done = 0;
    while (done < bytes.size()) {
        // Most output is ASCII: so many bytes a step.
        std::array<std::uint64_t, 4> words{};
        if (bytes.size() - done >= sizeof words) {
            std::memcpy(words.data(), bytes.data() + done, sizeof words);
            if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080ULL) == 0) {
                done += sizeof words;
                continue;
            }
        }
        const step next = next_character(bytes.substr(done));
        if (!next.valid) {
            break;
        }
        done += next.length;
    }
    return done;
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

} // namespace sandboxd
