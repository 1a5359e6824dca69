// Bytes in, lines out: the framing of the protocol. Pure; holds at most one unfinished line.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::rpc {

inline constexpr std::size_t max_line = 1U << 20; // bytes, the newline included

class line_splitter {
public:
    explicit line_splitter(std::size_t limit = max_line) noexcept : limit_(limit) {}

    // Takes what was read; then next() is called until it gives nothing.
    void feed(std::string_view bytes);
    // The next complete line without its newline, valid until the next call of either function; a
    // carriage return in front of the newline is left to JSON, to which it is white space.
    std::optional<std::string_view> next();
    // A line has grown over the limit: what follows cannot be trusted to be a message.
    bool overflowed() const noexcept { return overflowed_; }
    // Bytes of an unfinished line are waiting for more.
    bool midline() const noexcept { return start_ < buffer_.size(); }

private:
    std::size_t limit_;
    std::string buffer_;
    std::size_t start_ = 0;   // of the first line not given out yet
    std::size_t scanned_ = 0; // no newline before this
    bool overflowed_ = false;
};

} // namespace sandboxd::rpc
