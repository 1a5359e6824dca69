// Reads what the in-sandbox shim prints (daemon/shim/frames.h is the specification).
//
// The shim runs where untrusted code runs, so every byte is hostile input: lengths are bounded
// before anything is kept, positions must follow from one another, and whatever does not fit ends
// the reading with a reason. Pure and incremental: the text may be cut anywhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sandboxd::core {

// A piece of the command's output.
struct shim_data {
    bool is_stderr = false;
    std::uint64_t pos = 0; // of the first byte, both streams counted together in the shim's order
    std::uint64_t offset = 0; // within its stream
    std::string bytes;        // 1..65536
};

// Any other frame: its name, and its fields with their values decoded and, where they are not
// UTF-8, mended. The first frame of a call has the name "deepinfra-shim/1" and its verb under the
// key "".
struct shim_note {
    std::string name;
    std::map<std::string, std::string, std::less<>> fields;
    // Of the first frame: one for each mark asked for, in order; nothing: it cannot be read.
    std::vector<std::optional<std::string>> marks;

    std::string_view text(std::string_view key) const noexcept; // empty if absent or none
    std::optional<std::uint64_t>
    number(std::string_view key) const noexcept; // nothing if absent, none or no number
};

using shim_frame = std::variant<shim_data, shim_note>;

class shim_parser {
public:
    void feed(std::string_view text);
    // The next whole frame. Nothing: feed more, or broken().
    std::optional<shim_frame> next();
    // Why this is not what a shim prints; empty while it is.
    const std::string& broken() const noexcept { return broken_; }
    bool hello_seen() const noexcept { return hello_seen_; }
    bool midframe() const noexcept { return start_ < buffer_.size(); }
    // Of the next data frame.
    std::uint64_t pos() const noexcept { return pos_; }

private:
    std::optional<shim_frame> data_frame(std::string_view line, std::size_t line_end);
    std::optional<shim_frame> note_frame(std::string_view line, std::size_t line_end);
    std::optional<shim_frame> fail(std::string why);

    std::string buffer_;
    std::size_t start_ = 0;
    std::string broken_;
    bool hello_seen_ = false;
    std::uint64_t pos_ = 0;
    std::uint64_t offsets_[2] = {0, 0};
    bool exact_ = true; // offsets_ are known
};

} // namespace sandboxd::core
