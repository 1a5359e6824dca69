#include "cli/text.hpp"

#include "base/utf8.hpp"

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cwchar>

namespace sandboxd::cli {
namespace {

// The first character of `text`, which is valid UTF-8 and not empty, and how many bytes it takes.
struct character {
    char32_t code;
    std::size_t size;
};
character first_of(std::string_view text) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {lead, 1};
    const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    char32_t code = lead & (0x7fU >> size);
    for (std::size_t at = 1; at < size; ++at)
        code = code << 6 | (byte(at) & 0x3fU);
    return {code, size};
}

// In the locale utf8_locale.
std::size_t width_of(const character& one) {
    const int columns = ::wcwidth(static_cast<wchar_t>(one.code));
    return columns < 0 ? 1 : static_cast<std::size_t>(columns);
}

bool harmless(char32_t c) {
    const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
    const bool line_break = c == 0x2028 || c == 0x2029;
    const bool direction = c == 0x200e || c == 0x200f || c == 0x61c ||
                           (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    return !control && !line_break && !direction;
}

// Widths depend on the locale's character set, which must be UTF-8 here whatever LANG says.
class utf8_locale {
public:
    utf8_locale()
        : locale_(::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)),
          before_(locale_ != nullptr ? ::uselocale(locale_) : nullptr) {}
    utf8_locale(const utf8_locale&) = delete;
    utf8_locale& operator=(const utf8_locale&) = delete;
    ~utf8_locale() {
        if (locale_ == nullptr) return;
        ::uselocale(before_);
        ::freelocale(locale_);
    }

private:
    locale_t locale_;
    locale_t before_;
};

std::string padding(std::size_t width, std::string_view text) {
    const std::size_t taken = display_width(text);
    return std::string(width > taken ? width - taken : 0, ' ');
}

} // namespace

std::string printable(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        std::string_view valid = text.substr(0, valid_utf8_prefix(text));
        text.remove_prefix(valid.size());
        while (!valid.empty()) {
            const character next = first_of(valid);
            if (harmless(next.code)) {
                result += valid.substr(0, next.size);
            } else {
                char escaped[16];
                std::snprintf(escaped, sizeof escaped, next.code < 0x80 ? "\\x%02x" : "\\u{%x}",
                              static_cast<unsigned>(next.code));
                result += escaped;
            }
            valid.remove_prefix(next.size);
        }
        if (!text.empty()) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\x%02x",
                          static_cast<unsigned>(static_cast<unsigned char>(text.front())));
            result += escaped;
            text.remove_prefix(1);
        }
    }
    return result;
}

std::size_t display_width(std::string_view text) {
    const utf8_locale locale;
    std::size_t width = 0;
    while (!text.empty()) {
        const character next = first_of(text);
        width += width_of(next);
        text.remove_prefix(next.size);
    }
    return width;
}

std::string cut_to(std::size_t columns, std::string_view text) {
    if (display_width(text) <= columns) return std::string(text);
    constexpr std::string_view more = "...";
    const std::string_view sign = more.substr(0, std::min(columns, more.size()));
    const utf8_locale locale;
    std::size_t width = sign.size();
    std::size_t kept = 0;
    for (;;) {
        const character next = first_of(text.substr(kept));
        width += width_of(next);
        if (width > columns) return std::string(text.substr(0, kept)) + std::string(sign);
        kept += next.size;
    }
}

std::string style::operator()(paint look, std::string_view text) const {
    const char* code = nullptr;
    switch (look) {
    case paint::plain:
        break;
    case paint::good:
        code = "32";
        break;
    case paint::bad:
        code = "1;31";
        break;
    case paint::warning:
        code = "33";
        break;
    case paint::faint:
        code = "2";
        break;
    case paint::strong:
        code = "1";
        break;
    }
    if (!colour_ || code == nullptr || text.empty()) return std::string(text);
    return std::string("\x1b[") + code + "m" + std::string(text) + "\x1b[0m";
}

std::string table::render(const style& paint_with) const {
    std::vector<std::size_t> widths;
    for (std::size_t at = 0; at < columns_.size(); ++at) {
        std::size_t width = display_width(columns_[at].heading);
        for (const auto& cells : rows_)
            width = std::max(width, display_width(cells[at].text));
        widths.push_back(width);
    }
    std::string result;
    const auto line = [&](const auto& text_of, const auto& look_of) {
        std::string blanks; // due before the next text, so that none trail
        for (std::size_t at = 0; at < columns_.size(); ++at) {
            const std::string& text = text_of(at);
            const std::string fill = padding(widths[at], text);
            if (columns_[at].side == align::right) blanks += fill;
            if (!text.empty()) {
                result += blanks + paint_with(look_of(at), text);
                blanks.clear();
            }
            if (columns_[at].side == align::left) blanks += fill;
            blanks += "  ";
        }
        result += '\n';
    };
    line([&](std::size_t at) -> const std::string& { return columns_[at].heading; },
         [](std::size_t) { return paint::faint; });
    for (const auto& cells : rows_) {
        line([&](std::size_t at) -> const std::string& { return cells[at].text; },
             [&](std::size_t at) { return cells[at].look; });
    }
    return result;
}

std::string human_time(std::chrono::duration<double> time) {
    const double seconds = std::max(0.0, std::min(time.count(), 1e12));
    const auto whole = static_cast<long long>(seconds);
    const auto two = [](long long high, const char* high_unit, long long low,
                        const char* low_unit) {
        std::string text = std::to_string(high) + high_unit;
        if (low > 0) text += " " + std::to_string(low) + low_unit;
        return text;
    };
    if (whole < 60) return std::to_string(whole) + "s";
    if (whole < 3600) return two(whole / 60, "m", whole % 60, "s");
    if (whole < 86400) return two(whole / 3600, "h", whole % 3600 / 60, "m");
    return two(whole / 86400, "d", whole % 86400 / 3600, "h");
}

std::string counted(std::size_t number, std::string_view one, std::string_view many) {
    return std::to_string(number) + " " + std::string(number == 1 ? one : many);
}

} // namespace sandboxd::cli
