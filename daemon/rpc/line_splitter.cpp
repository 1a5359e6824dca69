#include "rpc/line_splitter.hpp"

namespace sandboxd::rpc {

void line_splitter::feed(std::string_view bytes) {
    buffer_.erase(0, start_);
    scanned_ -= start_;
    start_ = 0;
    buffer_ += bytes;
}

std::optional<std::string_view> line_splitter::next() {
    if (overflowed_) {
        return std::nullopt;
    }
    const std::size_t newline = buffer_.find('\n', scanned_);
    if (newline == std::string::npos) {
        scanned_ = buffer_.size();
        overflowed_ = buffer_.size() - start_ >= limit_;
        return std::nullopt;
    }
    if (newline + 1 - start_ > limit_) {
        overflowed_ = true;
        return std::nullopt;
    }
    const std::string_view line = std::string_view(buffer_).substr(start_, newline - start_);
    start_ = newline + 1;
    scanned_ = start_;
    return line;
}

} // namespace sandboxd::rpc
