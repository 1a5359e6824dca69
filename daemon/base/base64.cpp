#include "base/base64.hpp"

#include <openssl/evp.h>

#include <array>
#include <cstdint>

namespace sandboxd {
namespace {

constexpr std::uint32_t no_digit = 0x80;

constexpr std::array<std::uint8_t, 256> make_values() {
    constexpr std::string_view digits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::array<std::uint8_t, 256> values{};
    values.fill(no_digit);
    for (std::size_t i = 0; i < digits.size(); ++i) {
        values[static_cast<unsigned char>(digits[i])] = static_cast<std::uint8_t>(i);
    }
    return values;
}

std::uint32_t value_of(char digit) noexcept {
    static constexpr std::array<std::uint8_t, 256> values = make_values();
    return values[static_cast<unsigned char>(digit)];
}

} // namespace

std::string base64_encode(std::string_view bytes) {
    std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0'); // EVP_EncodeBlock adds a NUL
    const int written = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                        reinterpret_cast<const unsigned char*>(bytes.data()),
                                        static_cast<int>(bytes.size()));
    out.resize(static_cast<std::size_t>(written));
    return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
    // OpenSSL's decoder trims white space, takes '-' for an end and padding anywhere.
    if (text.size() % 4 != 0) {
        return std::nullopt;
    }
    const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
    const std::string_view digits = text.substr(0, text.size() - padding);
    std::string out(text.size() / 4 * 3, '\0');
    char* to = out.data();
    std::uint32_t bits = 0;
    std::uint32_t seen = 0; // all values together: the mark of what is no digit stays in it
    std::size_t at = 0;
    for (; at + 4 <= digits.size(); at += 4) {
        const std::uint32_t a = value_of(digits[at]);
        const std::uint32_t b = value_of(digits[at + 1]);
        const std::uint32_t c = value_of(digits[at + 2]);
        const std::uint32_t d = value_of(digits[at + 3]);
        seen |= a | b | c | d;
        bits = a << 18 | b << 12 | c << 6 | d;
        *to++ = static_cast<char>(bits >> 16);
        *to++ = static_cast<char>(bits >> 8);
        *to++ = static_cast<char>(bits);
    }
    bits = 0;
    for (std::size_t i = 0; i < 4 && at < digits.size(); ++i, ++at) {
        const std::uint32_t value = value_of(digits[at]);
        seen |= value;
        bits |= value << (18 - 6 * i);
    }
    if (padding > 0) {
        *to++ = static_cast<char>(bits >> 16);
        *to++ = static_cast<char>(bits >> 8);
    }
    if ((seen & no_digit) != 0) {
        return std::nullopt;
    }
    out.resize(text.size() / 4 * 3 - padding);
    return out;
}

} // namespace sandboxd
