#include "core/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace sandboxd::core {
namespace {

// The length of the valid sequence at the front of a non-empty `bytes`, 0 if there is none.
std::size_t sequence(std::string_view bytes) noexcept {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const unsigned char lead = at(0);
    if (lead < 0x80) {
        return 1;
    }
    std::size_t length = 0;
    unsigned char low =
        0x80; // bounds of the second byte: they exclude overlong forms, surrogates and > U+10FFFF
    unsigned char high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
        length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        length = 3;
        low = lead == 0xE0 ? 0xA0 : 0x80;
        high = lead == 0xED ? 0x9F : 0xBF;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        length = 4;
        low = lead == 0xF0 ? 0x90 : 0x80;
        high = lead == 0xF4 ? 0x8F : 0xBF;
    }
    if (length == 0 || bytes.size() < length || at(1) < low || at(1) > high) {
        return 0;
    }
    for (std::size_t i = 2; i < length; ++i) {
        if ((at(i) & 0xC0) != 0x80) {
            return 0;
        }
    }
    return length;
}

} // namespace

std::size_t valid_utf8_prefix(std::string_view bytes) noexcept {
    std::size_t done = 0;
    while (done < bytes.size()) {
        // Most output is ASCII: eight bytes a step.
        std::uint64_t word = 0;
        if (bytes.size() - done >= sizeof word) {
            std::memcpy(&word, bytes.data() + done, sizeof word);
            if ((word & 0x8080808080808080ULL) == 0) {
                done += sizeof word;
                continue;
            }
        }
        const std::size_t step = sequence(bytes.substr(done));
        if (step == 0) {
            break;
        }
        done += step;
    }
    return done;
}

} // namespace sandboxd::core
