#include "core/output_queue.hpp"

#include "base/utf8.hpp"

#include <algorithm>

namespace sandboxd::core {
namespace {

// Small pieces are joined up to this size: a command that prints line by line costs one message,
// not one a line.
constexpr std::size_t join_below = 16U << 10;

} // namespace

void output_queue::push(output_stream stream, std::string_view bytes) {
    if (bytes.empty()) {
        return;
    }
    std::uint64_t& offset = offsets_[stream == output_stream::err ? 1 : 0];
    const std::uint64_t at = offset;
    offset += bytes.size();
    if (!attended_) {
        dropped_ += bytes.size();
        return;
    }
    queued_ += bytes.size();
    if (!chunks_.empty() && chunks_.back().stream == stream &&
        chunks_.back().offset + chunks_.back().bytes.size() == at &&
        chunks_.back().bytes.size() + bytes.size() <= join_below) {
        chunks_.back().bytes += bytes;
        return;
    }
    chunks_.push_back({stream, at, std::string(bytes)});
}

void output_queue::skip_to(output_stream stream, std::uint64_t offset) {
    std::uint64_t& expected = offsets_[stream == output_stream::err ? 1 : 0];
    if (offset > expected) {
        dropped_ += offset - expected;
        expected = offset;
    }
}

std::optional<output_chunk> output_queue::take(std::size_t most) {
    if (!can_take()) {
        return std::nullopt;
    }
    run& front = chunks_.front();
    const std::string_view rest = std::string_view(front.bytes).substr(front.taken);
    const auto open = static_cast<std::size_t>(window_ - unacknowledged());
    std::size_t size = std::min({most, open, rest.size()});
    if (size < rest.size()) {
        // Keep a character whole if that leaves anything; a window of a few bytes may have to cut
        // one.
        const std::size_t whole = valid_utf8_prefix(rest.substr(0, size));
        if (whole > 0 && size - whole < 4) {
            size = whole;
        }
    }
    output_chunk chunk{front.stream, front.offset + front.taken, {}};
    if (size == front.bytes.size()) {
        chunk.bytes = std::move(front.bytes);
        chunks_.pop_front();
    } else {
        chunk.bytes = rest.substr(0, size);
        front.taken += size;
        if (front.taken == front.bytes.size()) {
            chunks_.pop_front();
        }
    }
    queued_ -= size;
    taken_ += size;
    return chunk;
}

bool output_queue::acknowledge(std::uint64_t offset) noexcept {
    if (offset > taken_) {
        return false;
    }
    acknowledged_ = std::max(acknowledged_, offset);
    return true;
}

void output_queue::abandon() noexcept {
    attended_ = false;
    dropped_ += queued_;
    acknowledged_ = taken_;
    queued_ = 0;
    chunks_.clear();
}

} // namespace sandboxd::core
