// The output of one command on its way to stdout and stderr: what to write next, what to
// acknowledge, where to go on after a lost connection. Pure.
//
// Positions count the bytes of both streams together (exec.output's `pos`).
#pragma once

#include <boost/json/object.hpp>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::cli {

namespace json = boost::json;

class exec_output {
public:
    enum stream : int { out = 0, err = 1 };
    struct piece {
        stream to;
        std::uint64_t at; // position of its first byte
        std::string bytes;
    };

    // `window`: the daemon's bound on bytes sent and not acknowledged. `start`: the position of the
    // first byte wanted.
    explicit exec_output(std::uint64_t window, std::uint64_t start = 0)
        : end_(start), acked_(start), ack_step_(window / 4) {}

    // The params of exec.output, and the bytes behind its line. Bytes that were taken before are
    // dropped; a gap is passed over and counted. False: the message makes no sense.
    bool take(const json::object& params, std::string_view raw = {});

    bool empty() const noexcept { return queue_.empty(); }
    std::size_t queued() const noexcept { return queued_; }
    // The next to write. Only if not empty.
    stream next_stream() const { return queue_.front().to; }
    std::string_view next_bytes() const {
        return std::string_view(queue_.front().bytes).substr(written_);
    }
    // So many of them have been written.
    void wrote(std::size_t bytes);
    // Nobody reads this stream any more: what is queued for it and what comes counts as written.
    void close(stream which);

    // Where the next piece is to begin: what came before has been taken.
    std::uint64_t end() const noexcept { return end_; }
    // All before it has been written.
    std::uint64_t written() const noexcept { return empty() ? end_ : queue_.front().at + written_; }
    // The position to acknowledge now, if enough has been written since the last one.
    std::optional<std::uint64_t> due_ack();
    // Bytes that never came, if `total` is the position of the output's end.
    std::uint64_t missing(std::uint64_t total) const noexcept {
        return gaps_ + (total > end_ ? total - end_ : 0);
    }

private:
    void drop_front();

    std::deque<piece> queue_;
    std::size_t queued_ = 0;  // bytes in queue_ not yet written
    std::size_t written_ = 0; // of the front piece
    std::uint64_t end_;
    std::array<bool, 2> closed_{};
    std::uint64_t gaps_ = 0;
    std::uint64_t acked_;
    std::uint64_t ack_step_;
};

} // namespace sandboxd::cli
