// SIGINT and SIGTERM as something to poll for.
#pragma once

#include "sys/fd.hpp"

#include <csignal>

namespace sandboxd::cli {

// From its construction to its end the two signals become readable on fd(), and SIGPIPE is ignored
// so that a closed stdout is an error that can be handled. One at a time in a process.
class signal_watch {
public:
    signal_watch();
    signal_watch(const signal_watch&) = delete;
    signal_watch& operator=(const signal_watch&) = delete;
    ~signal_watch();

    int fd() const noexcept { return fd_.get(); }
    // Whether any came since the last call.
    bool take();

private:
    sys::unique_fd fd_;
    struct sigaction int_before_ {};
    struct sigaction term_before_ {};
    struct sigaction pipe_before_ {};
};

} // namespace sandboxd::cli
