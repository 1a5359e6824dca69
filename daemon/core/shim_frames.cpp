#include "core/shim_frames.hpp"

#include "base/base64.hpp"
#include "base/lz4.hpp"
#include "base/utf8.hpp"
#include "core/mark_board.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace sandboxd::core {
namespace {

constexpr std::size_t max_line = 2048;  // SHIM_FRAME_LINE_MAX
constexpr std::size_t max_data = 65536; // SHIM_FRAME_DATA_MAX
constexpr std::size_t max_fields = 64;

// Decimal, below 2^63.
std::optional<std::uint64_t> number_of(std::string_view text) noexcept {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
        value > INT64_MAX) {
        return std::nullopt;
    }
    return value;
}

std::optional<std::string> percent_decoded(std::string_view text) {
    const auto digit = [](char c) {
        return c >= '0' && c <= '9'   ? c - '0'
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                      : -1;
    };
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) {
            return std::nullopt;
        }
        out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
        i += 2;
    }
    return out;
}

// Takes the word in front of the next blank off `rest`.
std::string_view word(std::string_view& rest) noexcept {
    const std::size_t blank = rest.find(' ');
    const std::string_view taken = rest.substr(0, blank);
    rest = blank == std::string_view::npos ? std::string_view{} : rest.substr(blank + 1);
    return taken;
}

} // namespace

std::string_view shim_note::text(std::string_view key) const noexcept {
    const auto found = fields.find(key);
    return found == fields.end() ? std::string_view{} : std::string_view(found->second);
}

std::optional<std::uint64_t> shim_note::number(std::string_view key) const noexcept {
    return number_of(text(key));
}

void shim_parser::feed(std::string_view text) {
    if (start_ > 0) {
        buffer_.erase(0, start_);
        start_ = 0;
    }
    buffer_ += text;
}

std::optional<shim_frame> shim_parser::fail(std::string why) {
    broken_ = std::move(why);
    buffer_.clear();
    start_ = 0;
    return std::nullopt;
}

std::optional<shim_frame> shim_parser::next() {
    if (!broken_.empty()) {
        return std::nullopt;
    }
    const std::string_view rest = std::string_view(buffer_).substr(start_);
    const std::size_t newline = rest.substr(0, max_line).find('\n');
    if (newline == std::string_view::npos) {
        return rest.size() >= max_line ? fail("a line of the shim is too long") : std::nullopt;
    }
    const std::string_view line = rest.substr(0, newline);
    if (!std::all_of(line.begin(), line.end(), [](char c) { return c >= 0x20 && c <= 0x7e; })) {
        return fail("a line of the shim holds a byte that is not printable ASCII");
    }
    const bool data = line.starts_with("o ") || line.starts_with("e ");
    if (!hello_seen_ && data) {
        return fail("the shim sent data before its first frame");
    }
    return data ? data_frame(line, start_ + newline + 1) : note_frame(line, start_ + newline + 1);
}

std::optional<shim_frame> shim_parser::data_frame(std::string_view line, std::size_t line_end) {
    std::string_view rest = line.substr(2);
    const bool is_stderr = line[0] == 'e';
    const auto pos = number_of(word(rest));
    const auto offset = number_of(word(rest));
    const std::string_view coding = word(rest);
    const auto size = number_of(word(rest));
    const bool packed = coding == "z";
    const auto told = packed ? number_of(word(rest)) : size; // characters of a packed payload
    if (!pos || !offset || !size || !told || *told > max_data || !rest.empty() ||
        (coding != "r" && coding != "b" && !packed)) {
        return fail("a data frame of the shim is malformed");
    }
    std::uint64_t& expected = offsets_[is_stderr ? 1 : 0];
    if (*size == 0 || *size > max_data || *pos != pos_ || *offset != expected || !exact_) {
        return fail("a data frame of the shim does not follow from what came before");
    }
    const std::size_t length = packed          ? static_cast<std::size_t>(*told)
                               : coding == "r" ? static_cast<std::size_t>(*size)
                                               : (static_cast<std::size_t>(*size) + 2) / 3 * 4;
    if (buffer_.size() - line_end < length + 1) {
        return std::nullopt; // all of it, then at once
    }
    const std::string_view payload = std::string_view(buffer_).substr(line_end, length);
    if (buffer_[line_end + length] != '\n') {
        return fail("a data frame of the shim has another length than it says");
    }
    shim_data frame{is_stderr, *pos, *offset, {}};
    if (coding == "r") {
        frame.bytes = payload;
    } else {
        std::optional<std::string> decoded = base64_decode(payload);
        if (decoded && packed) {
            decoded = lz4_unpacked(*decoded, static_cast<std::size_t>(*size));
        }
        if (!decoded || decoded->size() != *size) {
            return fail("a data frame of the shim is not what it says");
        }
        frame.bytes = std::move(*decoded);
    }
    if (frame.bytes.size() != *size) {
        return fail("a data frame of the shim has another length than it says");
    }
    start_ = line_end + length + 1;
    pos_ += *size;
    expected += *size;
    return frame;
}

std::optional<shim_frame> shim_parser::note_frame(std::string_view line, std::size_t line_end) {
    shim_note note;
    std::string_view rest = line;
    note.name = word(rest);
    const bool hello = note.name == "deepinfra-shim/1";
    if (hello == hello_seen_) {
        return fail(hello ? "the shim greeted twice" : "the shim's first frame is not a greeting");
    }
    while (!rest.empty()) {
        const std::string_view field = word(rest);
        const std::size_t equals = field.find('=');
        const std::string_view raw =
            equals == std::string_view::npos ? field : field.substr(equals + 1);
        std::optional<std::string> value = percent_decoded(raw);
        if (!value || note.fields.size() >= max_fields) {
            return fail("a frame of the shim is malformed");
        }
        const bool none = raw == "-";
        if (hello && field.starts_with("mark=") && note.marks.size() < most_marks) {
            note.marks.push_back(none ? std::nullopt : std::move(value));
            continue;
        }
        if (none) {
            continue;
        }
        // A repeated field keeps its first value, so that nothing said later can change it. They go
        // into texts for people, which must be text whatever the sandbox makes of them.
        note.fields.emplace(equals == std::string_view::npos ? std::string_view{}
                                                             : field.substr(0, equals),
                            repair_utf8(*value));
    }
    if (hello || note.name == "gap") {
        // What a position may be moved to: forward only.
        const auto pos = note.number("pos");
        const auto out = note.number("out");
        const auto err = note.number("err");
        if (note.name == "gap") {
            const auto size = note.number("n");
            const bool back = exact_ && out && err && (*out < offsets_[0] || *err < offsets_[1]);
            if (!pos || !size || !out || !err || *pos != pos_ || *out + *err != *pos + *size ||
                back) {
                return fail("a gap of the shim does not follow from what came before");
            }
            pos_ = *pos + *size;
            offsets_[0] = *out;
            offsets_[1] = *err;
            exact_ = true;
        } else if (pos) {
            // The other two are exact unless a gap follows, which then tells them.
            pos_ = *pos;
            offsets_[0] = out.value_or(0);
            offsets_[1] = err.value_or(0);
            exact_ = offsets_[0] + offsets_[1] == pos_;
        }
        hello_seen_ = true;
    }
    start_ = line_end;
    return note;
}

} // namespace sandboxd::core
