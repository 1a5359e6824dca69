// The output of one command between the cloud and its client: a bounded, ordered queue with a send
// window.
//
// Two bounds hold at once. What is queued and not yet taken is at most `window` bytes (plus the
// chunk that crossed it): above it `full()` tells the reader to stop reading, which makes the
// command wait as a full pipe would. What is taken and not yet acknowledged is at most `window`
// bytes: beyond it `take` gives nothing, so one client that does not read costs one window and
// delays no other command.
//
// Unattended (no client is attached), output is not kept: it is counted and dropped, oldest first,
// so that the command goes on. Offsets count bytes within a stream and never go back.
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
    std::uint64_t offset = 0; // of the first byte, in its stream
    std::string bytes;        // ends at a character's boundary if it is UTF-8 and the cut was ours
};

class output_queue {
public:
    // `window` in bytes, at least 1.
    explicit output_queue(std::size_t window) noexcept : window_(window) {}

    void push(output_stream stream, std::string_view bytes);
    // What comes next in that stream is at `offset`: anything between was given up before it
    // reached us. Never back.
    void skip_to(output_stream stream, std::uint64_t offset);
    bool full() const noexcept { return attended_ && queued_ >= window_; }
    bool empty() const noexcept { return chunks_.empty(); }
    bool can_take() const noexcept { return !chunks_.empty() && unacknowledged() < window_; }

    // At most `most` bytes (and what the window allows) of the oldest stream run; nothing if the
    // queue is empty or the window is closed.
    std::optional<output_chunk> take(std::size_t most);

    // `offset`: bytes consumed so far over all streams. False if it is more than was ever taken (a
    // client's mistake); an offset that goes back is ignored, as acknowledgements may cross.
    bool acknowledge(std::uint64_t offset) noexcept;

    // The client is gone for good: what is queued and what still comes is dropped, counted.
    void abandon() noexcept;

    std::uint64_t total() const noexcept {
        return offsets_[0] + offsets_[1];
    } // received, over both streams
    std::uint64_t dropped() const noexcept { return dropped_; }

private:
    struct run {
        output_stream stream;
        std::uint64_t offset;
        std::string bytes;
        std::size_t taken = 0; // of `bytes`
    };

    std::uint64_t unacknowledged() const noexcept { return taken_ - acknowledged_; }

    std::size_t window_;
    std::deque<run> chunks_;
    std::size_t queued_ = 0;
    std::uint64_t offsets_[2] = {0, 0};
    std::uint64_t taken_ = 0;
    std::uint64_t acknowledged_ = 0;
    std::uint64_t dropped_ = 0;
    bool attended_ = true;
};

} // namespace sandboxd::core
