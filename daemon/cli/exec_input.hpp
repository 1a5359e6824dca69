// The stdin of one command on its way to the daemon (exec.stdin): what to read, what to send, what
// to keep until it is safe. Pure.
//
// Bytes count from the beginning of stdin. What is not accepted is kept, and sent again after a
// lost connection; the daemon takes nothing twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::cli {

class exec_input {
public:
    // One piece at most: in base64 it leaves room for the rest of its message.
    static constexpr std::size_t longest_chunk = 512u << 10;
    // Unanswered at once, as the protocol allows.
    static constexpr std::size_t most_unanswered = 8;
    // Read ahead of what is accepted, at most.
    static constexpr std::size_t capacity = longest_chunk * most_unanswered;

    struct chunk {
        std::uint64_t offset;
        std::string_view bytes; // until the next call
        bool eof;               // nothing comes after it
    };

    // `begin`: what has been read already.
    explicit exec_input(std::string begin = {}) : kept_(std::move(begin)) {}

    // How much may be read from stdin now; 0: nothing.
    std::size_t room() const noexcept;
    void take(std::string_view bytes) { kept_ += bytes; }
    void end() noexcept { ended_ = true; }

    // What to send now, which then counts as sent.
    std::optional<chunk> next();
    // The answer to the oldest piece that has none: `accepted` bytes need not be sent again; not
    // `open`: no more is wanted.
    void answered(std::uint64_t accepted, bool open);
    // The oldest piece was refused. True: it had to be, because one before it was not taken whole.
    bool refused();
    // No more is wanted.
    void close() noexcept;
    // The connection is gone, with every answer that was due.
    void again() noexcept;

private:
    struct piece {
        std::uint64_t end;
        bool eof;
    };

    void settle() noexcept;

    std::string kept_; // from accepted_ on
    std::uint64_t accepted_ = 0;
    std::uint64_t sent_ = 0; // end of what was sent
    bool ended_ = false;     // nothing comes after kept_
    bool end_sent_ = false;
    bool closed_ = false;
    std::deque<piece> unanswered_; // oldest first
    bool short_ = false; // an answer said less than was sent: once all are in, go on at accepted_
};

} // namespace sandboxd::cli
