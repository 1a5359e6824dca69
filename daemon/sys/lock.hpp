// One daemon a state directory.
#pragma once

#include "sys/fd.hpp"

#include <sys/types.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace sandboxd::sys {

// Another live daemon holds the lock.
class already_running : public std::runtime_error {
public:
    already_running(const std::string& text, pid_t pid) : std::runtime_error(text), pid_(pid) {}
    // 0 if it could not be learned.
    pid_t pid() const noexcept { return pid_; }

private:
    pid_t pid_;
};

// Holds `flock` on `<state dir>/lock` for as long as it lives; the kernel lets go when the process
// ends, however it ends. The file stays and holds the owner's pid for people. Nothing of the state
// directory or the socket may be touched without it.
class instance_lock {
public:
    // Makes the directory (0700) if it is missing. Throws already_running, or std::system_error.
    explicit instance_lock(const std::filesystem::path& state_dir);

private:
    unique_fd fd_;
};

// The process that holds this lock; 0 if nobody does, or that cannot be told. For other programs.
pid_t lock_owner(const std::filesystem::path& state_dir);

} // namespace sandboxd::sys
