#include "cli/stdin_feed.hpp"

#include "base/base64.hpp"
#include "cli/failure.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace sandboxd::cli {

void stdin_feed::read() {
    buffer_.resize(std::min(input_.room(), exec_input::longest_chunk));
    const ssize_t n = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
    if (n > 0) {
        input_.take(std::string_view(buffer_).substr(0, static_cast<std::size_t>(n)));
    } else if (n == 0 || errno == EIO) { // EIO: a terminal that is not ours any more
        input_.end();
    } else if (errno != EINTR && errno != EAGAIN) {
        spoil("cannot read stdin: " + std::generic_category().message(errno));
    }
}

void stdin_feed::send(connection& daemon) {
    while (const auto chunk = input_.next()) {
        json::object params{{"exec_id", exec_id_}, {"offset", chunk->offset}};
        if (!chunk->bytes.empty()) params["data_b64"] = base64_encode(chunk->bytes);
        if (chunk->eof) params["eof"] = true;
        unanswered_.push_back(daemon.send("exec.stdin", std::move(params)));
    }
}

bool stdin_feed::take_answer(const json::object& message) {
    if (unanswered_.empty() || integer_of(message, "id") != unanswered_.front()) return false;
    unanswered_.pop_front();
    if (message.contains("result")) {
        const json::object& result = object_of(message, "result");
        const auto accepted = std::max<std::int64_t>(integer_of(result, "accepted").value_or(0), 0);
        input_.answered(static_cast<std::uint64_t>(accepted), text_of(result, "state") == "open");
        return true;
    }
    const json::object& error = object_of(message, "error");
    const std::string_view name = text_of(object_of(error, "data"), "name");
    if (name == "shutting_down") throw daemon_gone(exit_code::unresponsive, "the daemon ended");
    if (!input_.refused() && name != "exec_not_found") {
        spoil("its input could not be passed on: " + std::string(text_of(error, "message")));
    }
    return true;
}

void stdin_feed::again() noexcept {
    unanswered_.clear();
    input_.again();
}

void stdin_feed::spoil(std::string why) {
    input_.close();
    trouble_ = std::move(why);
}

} // namespace sandboxd::cli
