// See text.hpp.
#include "text.hpp"

#include <array>
#include <cstdint>

namespace emulator {

namespace {

// 1 = goes into a JSON string as it is.
constexpr std::array<bool, 256> make_plain() {
    std::array<bool, 256> plain{};
    for (int c = 0x20; c < 0x80; ++c)
        plain[static_cast<std::size_t>(c)] = c != '"' && c != '\\';
    return plain;
}
constexpr auto plain = make_plain();

struct sequence {
    std::size_t length; // bytes that belong together: a whole character, or a maximal broken part
    bool whole;
    bool cut; // broken only because the text ends
};

// Table 3-7 of the Unicode standard: the first continuation byte has a narrower range after some
// lead bytes.
sequence look(std::string_view s) {
    const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(s[i]); };
    const std::uint8_t lead = at(0);
    std::size_t need;
    std::uint8_t low = 0x80, high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF)
        need = 2;
    else if (lead >= 0xE0 && lead <= 0xEF) {
        need = 3;
        low = lead == 0xE0 ? 0xA0 : low;
        high = lead == 0xED ? 0x9F : high;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        need = 4;
        low = lead == 0xF0 ? 0x90 : low;
        high = lead == 0xF4 ? 0x8F : high;
    } else
        return {1, lead < 0x80, false};
    for (std::size_t i = 1; i < need; ++i) {
        if (i == s.size()) return {i, false, true};
        if (at(i) < low || at(i) > high) return {i, false, false};
        low = 0x80;
        high = 0xBF;
    }
    return {need, true, false};
}

void append_control(std::string& out, std::uint8_t c) {
    switch (c) {
    case '"':
        out += "\\\"";
        return;
    case '\\':
        out += "\\\\";
        return;
    case '\n':
        out += "\\n";
        return;
    case '\r':
        out += "\\r";
        return;
    case '\t':
        out += "\\t";
        return;
    default:
        constexpr char digits[] = "0123456789abcdef";
        out += "\\u00";
        out += digits[c >> 4];
        out += digits[c & 15];
    }
}

int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

} // namespace

std::size_t incomplete_tail(std::string_view bytes) {
    for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
        const auto c = static_cast<std::uint8_t>(bytes[bytes.size() - back]);
        if (c < 0x80) return 0;
        if (c >= 0xC0) return look(bytes.substr(bytes.size() - back)).cut ? back : 0;
    }
    return 0;
}

void append_json_text(std::string& out, std::string_view bytes, replacement how) {
    while (!bytes.empty()) {
        std::size_t run = 0;
        while (run < bytes.size() && plain[static_cast<std::uint8_t>(bytes[run])])
            ++run;
        out.append(bytes.data(), run);
        bytes.remove_prefix(run);
        if (bytes.empty()) return;
        const auto c = static_cast<std::uint8_t>(bytes[0]);
        if (c < 0x80) {
            append_control(out, c);
            bytes.remove_prefix(1);
            continue;
        }
        const auto found = look(bytes);
        if (found.whole)
            out.append(bytes.data(), found.length);
        else
            for (std::size_t i = 0; i < (how == replacement::byte ? found.length : 1); ++i)
                out += "\xEF\xBF\xBD";
        bytes.remove_prefix(found.length);
    }
}

bool percent_decode(std::string_view in, std::string& out, bool plus_is_space) {
    for (std::size_t i = 0; i < in.size(); ++i) {
        if (in[i] == '%') {
            if (i + 2 >= in.size() || hex(in[i + 1]) < 0 || hex(in[i + 2]) < 0) return false;
            out += static_cast<char>(hex(in[i + 1]) * 16 + hex(in[i + 2]));
            i += 2;
        } else
            out += plus_is_space && in[i] == '+' ? ' ' : in[i];
    }
    return true;
}

} // namespace emulator
