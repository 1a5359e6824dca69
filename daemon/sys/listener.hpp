// The listening socket: systemd's, or our own.
//
// Take the instance lock first. A socket that somebody listens on is never replaced, whoever it is;
// only a refused connection means that the file was left behind by a dead daemon. The file that we
// made goes with the object, unless somebody has put another one there.
#pragma once

#include "sys/fd.hpp"
#include "sys/paths.hpp"

#include <filesystem>
#include <string>

namespace sandboxd::sys {

class listener {
public:
    // systemd's socket if LISTEN_PID is this process (and takes LISTEN_* out of the environment),
    // else one bound to `socket`. Writes the address to `<state dir>/socket`, or says in trouble()
    // why not. Throws std::runtime_error or std::system_error; the text says what to do.
    static listener open(const std::filesystem::path& socket,
                         const std::filesystem::path& state_dir);

    listener(listener&&) noexcept = default;
    listener& operator=(listener&&) = delete;
    // Removes the socket file if we made it and it is still the same.
    ~listener();

    // Non-blocking, close-on-exec, AF_UNIX, SOCK_STREAM, listening. The caller owns it from now on
    // (an Asio acceptor, for example); the file stays with this object.
    [[nodiscard]] int release_fd() noexcept { return fd_.release(); }
    const std::filesystem::path& path() const noexcept { return path_; }
    bool from_systemd() const noexcept { return !pin_; }
    // Whether the file that we made is still there. systemd's is systemd's concern.
    bool reachable() const noexcept;
    // Of a socket of our own whose file is gone, as when the last logout takes the runtime
    // directory away: makes it anew, or `<state dir>/rpc.sock` where it cannot be, and writes the
    // address down. fd, path and trouble are new then. Throws as open().
    void bind_again(const std::filesystem::path& state_dir);
    // Why the address could not be written down; empty if it was.
    const std::string& trouble() const noexcept { return trouble_; }

private:
    listener(unique_fd fd, std::filesystem::path path, unique_fd pin)
        : fd_(std::move(fd)), path_(std::move(path)), pin_(std::move(pin)) {}

    void announce(const std::filesystem::path& state_dir);
    bool names_ours() const noexcept;

    unique_fd fd_;
    std::filesystem::path path_;
    std::string trouble_;
    // O_PATH descriptor of the socket file, which keeps its inode number from being given to
    // another. None: not ours.
    unique_fd pin_;
};

} // namespace sandboxd::sys
