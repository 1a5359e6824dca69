#include "base/json_text.hpp"

#include "base/utf8.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sandboxd {
namespace {

constexpr std::uint64_t every = 0x0101010101010101ULL;
constexpr std::uint64_t high = 0x8080808080808080ULL;

// Not zero exactly if one of the eight bytes is `c`; its lowest bit belongs to the first such byte.
constexpr std::uint64_t where(std::uint64_t word, unsigned char c) noexcept {
    const std::uint64_t difference = word ^ (every * c);
    return (difference - every) & ~difference & high;
}

bool is_special(char c) noexcept {
    return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
}

// The index of the first quote, backslash or control character from `at` on; the size if none.
std::size_t next_special(std::string_view text, std::size_t at) noexcept {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i last_control = _mm_set1_epi8(0x1f);
    for (; text.size() - at >= sizeof(__m128i); at += sizeof(__m128i)) {
        const __m128i bytes =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + at)); // NOLINT
        const __m128i control = _mm_cmpeq_epi8(_mm_max_epu8(bytes, last_control), last_control);
        const __m128i found = _mm_or_si128(
            control, _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)));
        if (const int mask = _mm_movemask_epi8(found); mask != 0) {
            return at + static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(mask)));
        }
    }
#endif
    std::uint64_t word = 0;
    while (text.size() - at >= sizeof word) {
        std::memcpy(&word, text.data() + at, sizeof word);
        const std::uint64_t control = (word - every * 0x20) & ~word & high;
        const std::uint64_t found = where(word, '"') | where(word, '\\') | control;
        if (found != 0) {
            if constexpr (std::endian::native == std::endian::little) {
                return at + static_cast<std::size_t>(std::countr_zero(found)) / 8;
            }
            break; // it is among these eight
        }
        at += sizeof word;
    }
    while (at < text.size() && !is_special(text[at])) {
        ++at;
    }
    return at;
}

// The one character of a short escape; NUL where there is none.
char short_escape(char c) noexcept {
    switch (c) {
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    case '"':
    case '\\':
        return c;
    default:
        return '\0';
    }
}

char short_unescape(char c) noexcept {
    switch (c) {
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case '"':
    case '\\':
    case '/':
        return c;
    default:
        return '\0';
    }
}

int hexadecimal(char c) noexcept {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

// Of four digits, as UTF-8. False: not four digits, or half of a surrogate pair.
bool append_unicode_escape(std::string& to, std::string_view digits) {
    unsigned value = 0;
    for (const char c : digits) {
        const int digit = hexadecimal(c);
        if (digit < 0) {
            return false;
        }
        value = value * 16 + static_cast<unsigned>(digit);
    }
    if (digits.size() != 4 || (value >= 0xd800 && value <= 0xdfff)) {
        return false;
    }
    if (value < 0x80) {
        to += static_cast<char>(value);
    } else if (value < 0x800) {
        to += static_cast<char>(0xc0 | value >> 6);
        to += static_cast<char>(0x80 | (value & 0x3f));
    } else {
        to += static_cast<char>(0xe0 | value >> 12);
        to += static_cast<char>(0x80 | (value >> 6 & 0x3f));
        to += static_cast<char>(0x80 | (value & 0x3f));
    }
    return true;
}

} // namespace

void append_json_string(std::string& to, std::string_view utf8) {
    static constexpr char digits[] = "0123456789abcdef";
    // An escape in eight: what a text of short lines has. More of them make it grow.
    to.reserve(to.size() + utf8.size() + utf8.size() / 8 + 2);
    to += '"';
    for (std::size_t at = 0; at < utf8.size();) {
        const std::size_t special = next_special(utf8, at);
        to.append(utf8, at, special - at);
        if (special < utf8.size()) {
            const char c = utf8[special];
            if (const char escape = short_escape(c)) {
                const char pair[] = {'\\', escape};
                to.append(pair, sizeof pair);
            } else {
                to += "\\u00";
                to += digits[static_cast<unsigned char>(c) >> 4];
                to += digits[static_cast<unsigned char>(c) & 15];
            }
        }
        at = special + 1;
    }
    to += '"';
}

std::optional<std::size_t> append_json_unescaped(std::string& to, std::string_view text) {
    to.reserve(to.size() + text.size());
    for (std::size_t at = 0;;) {
        const std::size_t special = next_special(text, at);
        to.append(text, at, special - at);
        if (special == text.size()) {
            return std::nullopt;
        }
        if (text[special] == '"') {
            // All at once: what is cut by an escape is as broken as it was before.
            return is_utf8(text.substr(0, special)) ? std::optional(special) : std::nullopt;
        }
        if (text[special] != '\\' || special + 1 == text.size()) {
            return std::nullopt;
        }
        if (const char c = short_unescape(text[special + 1])) {
            to += c;
            at = special + 2;
        } else if (text[special + 1] == 'u' &&
                   append_unicode_escape(to, text.substr(special + 2, 4))) {
            at = special + 6;
        } else {
            return std::nullopt;
        }
    }
}

} // namespace sandboxd
