#include "cli/exec_output.hpp"

#include "base/base64.hpp"
#include "cli/connection.hpp"

namespace sandboxd::cli {

bool exec_output::take(const json::object& params, std::string_view raw) {
    const std::string_view name = text_of(params, "stream");
    if (name != "stdout" && name != "stderr") return false;
    const stream to = name == "stdout" ? out : err;
    const auto at = integer_of(params, "pos");
    if (!at || *at < 0) return false;
    auto begin = static_cast<std::uint64_t>(*at);

    std::string bytes;
    if (params.contains("raw")) {
        bytes = raw;
    } else if (const auto* data = params.if_contains("data");
               data != nullptr && data->is_string()) {
        bytes = std::string_view(data->get_string());
    } else if (auto decoded = base64_decode(text_of(params, "data_b64"))) {
        bytes = std::move(*decoded);
    } else {
        return false;
    }

    if (begin + bytes.size() <= end_) return true;
    if (begin < end_) {
        bytes.erase(0, end_ - begin);
        begin = end_;
    }
    gaps_ += begin - end_;
    end_ = begin + bytes.size();
    if (!closed_[to]) {
        queued_ += bytes.size();
        queue_.push_back({to, begin, std::move(bytes)});
    }
    return true;
}

void exec_output::wrote(std::size_t bytes) {
    written_ += bytes;
    queued_ -= bytes;
    if (written_ == queue_.front().bytes.size()) drop_front();
}

void exec_output::close(stream which) {
    closed_[which] = true;
    const std::size_t front_written = written_;
    std::deque<piece> kept;
    for (std::size_t i = 0; i < queue_.size(); ++i) {
        if (queue_[i].to == which) {
            queued_ -= queue_[i].bytes.size() - (i == 0 ? front_written : 0);
            if (i == 0) written_ = 0;
        } else {
            kept.push_back(std::move(queue_[i]));
        }
    }
    queue_ = std::move(kept);
}

std::optional<std::uint64_t> exec_output::due_ack() {
    const std::uint64_t done = written();
    if (done - acked_ < ack_step_) return std::nullopt;
    acked_ = done;
    return done;
}

void exec_output::drop_front() {
    queue_.pop_front();
    written_ = 0;
}

} // namespace sandboxd::cli
