// The output of one command between its sandbox and one client: a bounded, ordered queue with a
// send window.
//
// Every byte has a position, counted over both streams together in the order in which the queue
// gets them, and an offset within its stream. Neither goes back. What the sandbox gave up leaves a
// hole in both, which counts as dropped and takes up no window.
//
// Two bounds hold at once. What is queued and not yet taken is at most `window` bytes (plus the
// chunk that crossed it): above it `full()` tells the reader to stop reading, which makes the
// command wait as a full pipe would. What is taken and not yet acknowledged is at most `window`
// bytes: beyond it `take` gives nothing, so one client that does not read costs one window and
// delays no other command.
//
// Without a client (`leave`) the queue never fills. Where the sandbox keeps the output, the bytes
// are not kept here too; where it does not, the newest window of them is, and what was sent and not
// acknowledged, for the client that comes next (`rewind`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::core {

enum class output_stream { out, err };

struct output_chunk {
    output_stream stream = output_stream::out;
    std::uint64_t pos = 0;    // of the first byte
    std::uint64_t offset = 0; // likewise, in its stream
    std::string bytes;        // ends at a character's boundary if it is UTF-8 and the cut was ours
};

class output_queue {
public:
    // `window` in bytes, at least 1. `start`: the position of the first byte to come.
    explicit output_queue(std::size_t window, std::uint64_t start = 0) noexcept
        : window_(window), end_(start), taken_(start), acknowledged_(start) {}

    // The only copy there is: keep what was sent until it is acknowledged.
    void retain() noexcept { retained_ = true; }

    void push(output_stream stream, std::string bytes);
    // The same, from a source that knows its place. Beyond the expected one, what is between was
    // given up; what lies before it is left out, as positions never go back.
    void push(output_stream stream, std::uint64_t pos, std::uint64_t offset, std::string bytes);
    // All there ever was ends at `pos`: what has not come by now was given up.
    void finish(std::uint64_t pos) noexcept;

    bool full() const noexcept { return attended_ && queued_ >= window_; }
    bool empty() const noexcept { return next_ == runs_.size(); } // all was taken
    bool can_take() const noexcept { return !empty() && unacknowledged() < window_; }

    // At most `most` bytes (and what the window allows) of the oldest stream run; nothing if the
    // queue is empty or the window is closed.
    std::optional<output_chunk> take(std::size_t most);

    // `pos`: before it everything is safe with the client. False if it is more than was ever taken
    // (a client's mistake); one that goes back is ignored, as acknowledgements may cross.
    bool acknowledge(std::uint64_t pos) noexcept;

    // The client is gone.
    void leave();
    // Another one goes on from `pos`. Only of a retaining queue; what is not there any more is
    // dropped.
    void rewind(std::uint64_t pos, std::size_t window);

    std::uint64_t safe() const noexcept { return acknowledged_; } // what is before is the client's
    std::uint64_t end() const noexcept { return end_; } // position after the last byte received
    std::uint64_t dropped() const noexcept { return dropped_; } // bytes this client never gets

private:
    struct run {
        output_stream stream;
        std::uint64_t pos;
        std::uint64_t offset;
        std::string bytes;
        std::size_t taken = 0; // of `bytes`
        std::uint64_t end() const noexcept { return pos + bytes.size(); }
    };

    std::uint64_t unacknowledged() const noexcept { return taken_ - acknowledged_; }
    void forget_front();
    void trim();

    std::size_t window_;
    std::deque<run> runs_;
    std::size_t next_ = 0;   // the first run of which something is not taken
    std::size_t queued_ = 0; // bytes not yet taken
    std::uint64_t offsets_[2] = {0, 0};
    std::uint64_t end_;
    std::uint64_t taken_;        // position after the last byte taken
    std::uint64_t acknowledged_; // <= taken_
    std::uint64_t dropped_ = 0;
    bool retained_ = false;
    bool attended_ = true;
};

} // namespace sandboxd::core
