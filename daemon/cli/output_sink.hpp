// Where a stream of a command's output goes on this side: stdout or stderr, written to by a loop
// that must never be held up by whoever reads it.
//
// Does not own the descriptor, which other processes may share: its flags are left as they are.
#pragma once

#include "sys/fd.hpp"

#include <cstddef>
#include <string_view>
#include <sys/types.h>

namespace sandboxd::cli {

class output_sink {
public:
    explicit output_sink(int descriptor);

    // To be polled for POLLOUT before each write.
    int fd() const noexcept { return own_ ? own_.get() : shared_; }
    // As write(2), of as much of `bytes` as is taken without waiting; errno is EAGAIN for nothing.
    ssize_t write(std::string_view bytes);

private:
    int shared_;
    sys::unique_fd own_; // the same pipe once more, opened so that a write never waits
    std::size_t most_;   // bytes that one write after POLLOUT takes without waiting
};

} // namespace sandboxd::cli
