#include "core/output_queue.hpp"

#include "base/utf8.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {
namespace {

// Small pieces are joined up to this size: a command that prints line by line costs one message,
// not one a line.
constexpr std::size_t join_below = 16U << 10;

} // namespace

void output_queue::push(output_stream stream, std::string bytes) {
    push(stream, end_, offsets_[stream == output_stream::err ? 1 : 0], std::move(bytes));
}

void output_queue::push(output_stream stream, std::uint64_t pos, std::uint64_t offset,
                        std::string bytes) {
    if (pos < end_) { // from a source that began earlier
        const auto known =
            static_cast<std::size_t>(std::min<std::uint64_t>(end_ - pos, bytes.size()));
        bytes.erase(0, known);
        pos += known;
        offset += known;
    }
    if (bytes.empty()) {
        return;
    }
    const bool follows = pos == end_;
    dropped_ += attended_ ? pos - end_ : 0;
    end_ = pos + bytes.size();
    offsets_[stream == output_stream::err ? 1 : 0] = offset + bytes.size();
    if (!attended_ && !retained_) {
        taken_ = acknowledged_ = end_;
        return;
    }
    queued_ += bytes.size();
    if (follows && next_ < runs_.size() && runs_.back().stream == stream &&
        runs_.back().bytes.size() + bytes.size() <= join_below) {
        runs_.back().bytes += bytes;
    } else {
        runs_.push_back({stream, pos, offset, std::move(bytes)});
    }
    if (!attended_) {
        trim();
    }
}

void output_queue::finish(std::uint64_t pos) noexcept {
    if (pos > end_) {
        dropped_ += attended_ ? pos - end_ : 0;
        end_ = pos;
    }
}

std::optional<output_chunk> output_queue::take(std::size_t most) {
    if (!can_take()) {
        return std::nullopt;
    }
    run& front = runs_[next_];
    if (const std::uint64_t at = front.pos + front.taken; at > taken_) {
        acknowledged_ += at - taken_; // nobody will ever acknowledge a hole
        taken_ = at;
    }
    const std::string_view rest = std::string_view(front.bytes).substr(front.taken);
    const auto open = static_cast<std::size_t>(window_ - unacknowledged());
    std::size_t size = std::min({most, open, rest.size()});
    if (size < rest.size()) {
        // Keep a character whole if that leaves anything; a window of a few bytes may have to cut
        // one.
        const std::size_t whole = utf8_floor(rest, size);
        if (whole > 0 && size - whole < 4) {
            size = whole;
        }
    }
    output_chunk chunk{front.stream, front.pos + front.taken, front.offset + front.taken, {}};
    queued_ -= size;
    taken_ += size;
    if (size == front.bytes.size() && !retained_) {
        chunk.bytes = std::move(front.bytes);
        runs_.pop_front();
        return chunk;
    }
    chunk.bytes = rest.substr(0, size);
    front.taken += size;
    if (front.taken == front.bytes.size()) {
        if (retained_) {
            ++next_;
        } else {
            runs_.pop_front();
        }
    }
    return chunk;
}

bool output_queue::acknowledge(std::uint64_t pos) noexcept {
    if (pos > taken_) {
        return false;
    }
    acknowledged_ = std::max(acknowledged_, pos);
    while (next_ > 0 && runs_.front().end() <= acknowledged_) {
        forget_front();
    }
    return true;
}

// Of a run that was taken as a whole, or is given up.
void output_queue::forget_front() {
    queued_ -= runs_.front().bytes.size() - runs_.front().taken;
    next_ -= next_ > 0 ? 1 : 0;
    runs_.pop_front();
}

void output_queue::trim() {
    std::uint64_t kept = 0;
    for (const run& each : runs_) {
        kept += each.bytes.size();
    }
    // The newest piece stays whatever its size.
    while (runs_.size() > 1 && kept - runs_.front().bytes.size() >= window_) {
        kept -= runs_.front().bytes.size();
        forget_front();
    }
    taken_ = std::max(taken_, runs_.front().pos);
    acknowledged_ = std::max(acknowledged_, runs_.front().pos);
}

void output_queue::leave() {
    attended_ = false;
    if (!retained_) {
        runs_.clear();
        next_ = queued_ = 0;
        taken_ = acknowledged_ = end_;
    } else if (!runs_.empty()) {
        trim();
    }
}

void output_queue::rewind(std::uint64_t pos, std::size_t window) {
    window_ = window;
    attended_ = true;
    dropped_ = 0;
    std::uint64_t at = std::min(pos, end_);
    if (const std::uint64_t oldest = runs_.empty() ? end_ : runs_.front().pos; at < oldest) {
        dropped_ = oldest - at;
        at = oldest;
    }
    next_ = 0;
    queued_ = 0;
    for (run& each : runs_) {
        each.taken =
            at <= each.pos
                ? 0
                : std::min<std::size_t>(each.bytes.size(), static_cast<std::size_t>(at - each.pos));
        next_ += each.taken == each.bytes.size() ? 1 : 0;
        queued_ += each.bytes.size() - each.taken;
    }
    taken_ = acknowledged_ = at;
}

} // namespace sandboxd::core
