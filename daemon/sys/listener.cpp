#include "sys/listener.hpp"

#include "sys/file.hpp"
#include "sys/system_error.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace sandboxd::sys {
namespace fs = std::filesystem;
namespace {

constexpr int first_passed_fd = 3; // SD_LISTEN_FDS_START
constexpr int backlog = 512; // many commands may start at once; the kernel caps it (somaxconn)

sockaddr_un address_of(const fs::path& socket) {
    check_socket_path(socket);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket.c_str(), socket.native().size() + 1);
    return address;
}

int socket_option(int fd, int option) {
    int value = 0;
    socklen_t size = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

fs::path bound_path(int fd) {
    sockaddr_un address{};
    socklen_t size = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        throw_errno("cannot learn the address of the socket from systemd");
    }
    const std::size_t length = size - offsetof(sockaddr_un, sun_path);
    // An abstract socket has no file, hence no permissions.
    if (size <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] != '/') {
        throw std::runtime_error(
            "the socket from systemd has no path: ListenStream= must name one");
    }
    return std::string(address.sun_path, ::strnlen(address.sun_path, length));
}

// Nothing if none was passed to this very process.
unique_fd passed_socket() {
    const auto number = [](const char* variable) {
        const char* text = std::getenv(variable); // NOLINT(concurrency-mt-unsafe): at start
        return text == nullptr ? 0L : std::strtol(text, nullptr, 10);
    };
    const long pid = number("LISTEN_PID");
    const long count = number("LISTEN_FDS");
    for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) {
        ::unsetenv(variable); // NOLINT(concurrency-mt-unsafe): at start
    }
    if (pid != ::getpid() || count <= 0) return {};
    if (count != 1) {
        throw std::runtime_error("systemd passed " + std::to_string(count) +
                                 " sockets; the socket unit must have one ListenStream=");
    }
    unique_fd fd(first_passed_fd);
    if (socket_option(fd.get(), SO_DOMAIN) != AF_UNIX ||
        socket_option(fd.get(), SO_TYPE) != SOCK_STREAM ||
        socket_option(fd.get(), SO_ACCEPTCONN) != 1) {
        throw std::runtime_error("descriptor 3 from systemd is not a listening Unix stream socket");
    }
    if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0 ||
        ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK) != 0) {
        throw_errno("cannot prepare the socket from systemd");
    }
    return fd;
}

// Removes a socket that nobody listens on; throws if somebody does, or if that cannot be told.
void remove_stale(const fs::path& socket, const sockaddr_un& address) {
    struct stat status {};
    if (::lstat(socket.c_str(), &status) != 0) {
        if (errno == ENOENT) return;
        throw_errno("cannot examine " + socket.string());
    }
    // Connecting to a plain file is refused as well.
    if (!S_ISSOCK(status.st_mode)) {
        throw std::runtime_error(socket.string() + " exists and is not a socket");
    }
    const unique_fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!probe) throw_errno("cannot make a socket");
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
        errno == EAGAIN) { // its backlog is full: busy, hence alive
        throw std::runtime_error(
            "another program listens on " + socket.string() +
            " (a daemon with another state directory, or systemd's socket unit: then use "
            "`systemctl --user start deepinfra-sandboxd.service`)");
    }
    if (errno == ENOENT) return;
    if (errno != ECONNREFUSED)
        throw_errno("cannot tell whether anybody listens on " + socket.string());
    if (::unlink(socket.c_str()) != 0 && errno != ENOENT) {
        throw_errno("cannot remove the stale socket " + socket.string());
    }
}

struct bound_socket {
    unique_fd fd;
    unique_fd pin;
};

bound_socket bind_own(const fs::path& socket) {
    const sockaddr_un address = address_of(socket);
    const fs::path directory = socket.parent_path();
    ensure_private_directory(directory);

    // Two daemons with different state directories may want the same socket: between the look and
    // the bind, one of them at a time.
    const unique_fd turn(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!turn) throw_errno("cannot open directory " + directory.string());
    while (::flock(turn.get(), LOCK_EX) != 0) {
        if (errno != EINTR) throw_errno("cannot lock " + directory.string());
    }
    remove_stale(socket, address);

    unique_fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) throw_errno("cannot make a socket");
    // The file takes the mode of the unbound socket: no moment in which others could connect, and
    // no umask, which is the whole process's.
    if (::fchmod(fd.get(), 0600) != 0) throw_errno("cannot set the socket's mode");
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        throw_errno("cannot bind " + socket.string());
    }
    unique_fd pin(::open(socket.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!pin) throw_errno("cannot open " + socket.string());
    if (::listen(fd.get(), backlog) != 0) throw_errno("cannot listen on " + socket.string());
    return {std::move(fd), std::move(pin)};
}

} // namespace

listener listener::open(const fs::path& socket, const fs::path& state_dir) {
    auto result = [&]() -> listener {
        if (unique_fd passed = passed_socket()) {
            fs::path path = bound_path(passed.get());
            return {std::move(passed), std::move(path), unique_fd()};
        }
        bound_socket own = bind_own(socket);
        return {std::move(own.fd), socket, std::move(own.pin)};
    }();
    result.announce(state_dir);
    return result;
}

// Most start with the file as it is; and where nothing can be written, such as on a full disk,
// those who find the socket without it are still served, and sandboxes still stopped when idle.
void listener::announce(const fs::path& state_dir) {
    const fs::path file = socket_address_file(state_dir);
    const std::string line = path_.string() + "\n";
    try {
        if (read_file(file, line.size()) == line) return;
    } catch (const std::system_error&) {
        // Of whatever is there: it is replaced.
    }
    try {
        atomic_write(file, line);
    } catch (const std::system_error& error) {
        trouble_ = error.what();
    }
}

bool listener::reachable() const noexcept {
    return from_systemd() || names_ours();
}

void listener::bind_again(const fs::path& state_dir) {
    bound_socket own;
    const fs::path elsewhere = state_dir / "rpc.sock";
    try {
        own = bind_own(path_);
    } catch (const std::exception&) {
        if (path_ == elsewhere) throw;
        own = bind_own(elsewhere);
        path_ = elsewhere;
    }
    fd_ = std::move(own.fd);
    pin_ = std::move(own.pin);
    announce(state_dir);
}

bool listener::names_ours() const noexcept {
    struct stat made {};
    struct stat named {};
    return ::fstat(pin_.get(), &made) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
           made.st_dev == named.st_dev && made.st_ino == named.st_ino;
}

listener::~listener() {
    if (pin_ && names_ours()) ::unlink(path_.c_str());
}

} // namespace sandboxd::sys
