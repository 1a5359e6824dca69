// An owned file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace sandboxd::sys {

// Closes what it holds, once; -1 holds nothing.
class unique_fd {
public:
    unique_fd() = default;
    explicit unique_fd(int fd) noexcept : fd_(fd) {}
    unique_fd(unique_fd&& other) noexcept : fd_(other.release()) {}
    unique_fd& operator=(unique_fd&& other) noexcept {
        if (this != &other) {
            reset(other.release());
        }
        return *this;
    }
    ~unique_fd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    // The caller closes it from now on.
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset(int fd = -1) noexcept {
        if (fd_ >= 0) {
            ::close(fd_); // also gone after EINTR on Linux: never repeated
        }
        fd_ = fd;
    }

private:
    int fd_ = -1;
};

} // namespace sandboxd::sys
