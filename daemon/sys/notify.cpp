#include "sys/notify.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace sandboxd::sys {
namespace {

// The status must stay on its line: whatever follows a line break would be an assignment of its
// own.
std::string status_line(std::string_view text) {
    std::string line = "STATUS=" + std::string(text);
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    return line;
}

} // namespace

notifier notifier::from_environment() {
    const char* address = std::getenv("NOTIFY_SOCKET"); // NOLINT(concurrency-mt-unsafe): at start
    notifier result(address == nullptr ? std::string_view() : std::string_view(address));
    ::unsetenv("NOTIFY_SOCKET"); // NOLINT(concurrency-mt-unsafe): at start
    return result;
}

notifier::notifier(std::string_view address) {
    sockaddr_un target{};
    if (address.empty() || (address.front() != '/' && address.front() != '@') ||
        address.size() >= sizeof target.sun_path) {
        return;
    }
    target.sun_family = AF_UNIX;
    std::memcpy(target.sun_path, address.data(), address.size());
    if (address.front() == '@') target.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    unique_fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&target), size) == 0) {
        fd_ = std::move(fd);
    }
}

void notifier::ready(std::string_view status) const {
    send("READY=1\n" + status_line(status));
}

void notifier::stopping(std::string_view status) const {
    send("STOPPING=1\n" + status_line(status));
}

void notifier::status(std::string_view text) const {
    send(status_line(text));
}

void notifier::send(const std::string& message) const {
    if (fd_) {
        (void)::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
    }
}

} // namespace sandboxd::sys
