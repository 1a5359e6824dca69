#include "cli/exec_input.hpp"

#include <algorithm>

namespace sandboxd::cli {

std::size_t exec_input::room() const noexcept {
    return closed_ || ended_ ? 0 : capacity - std::min(capacity, kept_.size());
}

std::optional<exec_input::chunk> exec_input::next() {
    if (closed_ || short_ || unanswered_.size() >= most_unanswered) return std::nullopt;
    const std::uint64_t offset = sent_;
    const std::string_view bytes =
        std::string_view(kept_).substr(offset - accepted_, longest_chunk);
    const bool eof = ended_ && offset + bytes.size() == accepted_ + kept_.size();
    if (bytes.empty() && (!eof || end_sent_)) return std::nullopt;
    // Each piece costs a request to the cloud: while one is under way, small ones gather.
    if (bytes.size() < longest_chunk && !eof && !unanswered_.empty()) return std::nullopt;
    sent_ += bytes.size();
    end_sent_ = eof;
    unanswered_.push_back({sent_, eof});
    return chunk{offset, bytes, eof};
}

void exec_input::answered(std::uint64_t accepted, bool open) {
    if (unanswered_.empty()) return;
    const piece which = unanswered_.front();
    unanswered_.pop_front();
    if (!open) return close();
    if (closed_) return;
    if (accepted < which.end || which.eof) short_ = true;
    // More than was sent is accepted where another client has fed the same command; its bytes are
    // ours, since the id is.
    const std::uint64_t safe = std::clamp(accepted, accepted_, sent_);
    kept_.erase(0, safe - accepted_);
    accepted_ = safe;
    settle();
}

bool exec_input::refused() {
    const bool expected = short_ || closed_;
    if (!unanswered_.empty()) unanswered_.pop_front();
    settle();
    return expected;
}

void exec_input::close() noexcept {
    closed_ = true;
    kept_.clear();
}

void exec_input::again() noexcept {
    unanswered_.clear();
    short_ = true;
    settle();
}

void exec_input::settle() noexcept {
    if (!short_ || !unanswered_.empty()) return;
    short_ = false;
    end_sent_ = false;
    sent_ = accepted_;
}

} // namespace sandboxd::cli
