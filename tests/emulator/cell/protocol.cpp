// Encoding of command lines and of messages with descriptors; see protocol.hpp.
#include "cell/protocol.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace emulator::cell {

namespace {

constexpr std::size_t max_fds = 4;

void put_list(std::string& out, const std::vector<std::string>& list) {
    out += std::to_string(list.size());
    out += '\0';
    for (const auto& item : list) {
        out += item;
        out += '\0';
    }
}

std::string take(std::string_view& in) {
    const auto end = in.find('\0');
    std::string item(in.substr(0, end));
    in.remove_prefix(end == in.npos ? in.size() : end + 1);
    return item;
}

std::vector<std::string> take_list(std::string_view& in) {
    std::vector<std::string> list(std::stoul(take(in)));
    for (auto& item : list)
        item = take(in);
    return list;
}

} // namespace

std::string encode(const exec_spec& spec) {
    std::string out = spec.cwd;
    out += '\0';
    put_list(out, spec.argv);
    put_list(out, spec.env);
    return out;
}

exec_spec decode_exec_spec(std::string_view bytes) {
    exec_spec spec;
    spec.cwd = take(bytes);
    spec.argv = take_list(bytes);
    spec.env = take_list(bytes);
    return spec;
}

bool send_message(int socket, const void* data, std::size_t size, const std::vector<int>& fds) {
    iovec part{const_cast<void*>(data), size};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_fds)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
        std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    for (;;) {
        if (::sendmsg(socket, &message, MSG_NOSIGNAL) >= 0) return true;
        if (errno != EINTR) return false;
    }
}

std::int64_t receive_message(int socket, void* data, std::size_t size,
                             std::vector<unique_fd>& fds) {
    iovec part{data, size};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_fds)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t got;
    do
        got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0) return -1;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const auto count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
            fds.emplace_back(fd);
        }
    }
    return got;
}

} // namespace emulator::cell
