#include "sys/lock.hpp"

#include "sys/file.hpp"
#include "sys/system_error.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace sandboxd::sys {
namespace {

// 0: none is there, or that process is no more.
pid_t recorded_pid(int fd) {
    char text[24] = {};
    const pid_t pid =
        ::pread(fd, text, sizeof text - 1, 0) > 0 ? static_cast<pid_t>(std::atol(text)) : 0;
    return pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM) ? pid : 0;
}

// Between taking the lock and writing its pid the owner is another process than the file says, or
// none: a moment later it is known.
pid_t owner_of(int fd) {
    for (int looks = 0; looks < 20; ++looks) {
        if (const pid_t pid = recorded_pid(fd); pid != 0) return pid;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return 0;
}

bool still_there(int fd, const std::filesystem::path& file) {
    struct stat held {};
    struct stat named {};
    return ::fstat(fd, &held) == 0 && ::stat(file.c_str(), &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

} // namespace

// Asked of the kernel's list: to try the lock might turn away a daemon that starts just now.
pid_t lock_owner(const std::filesystem::path& state_dir) {
    const std::filesystem::path file = state_dir / "lock";
    const unique_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) return 0;
    const pid_t pid = recorded_pid(fd.get());
    std::ifstream locks("/proc/locks");
    for (std::string line; pid != 0 && std::getline(locks, line);) {
        // "1: FLOCK  ADVISORY  WRITE 4711 08:01:123456 0 EOF"
        std::istringstream words(line);
        std::string number, kind, how, access, owner, inode;
        words >> number >> kind >> how >> access >> owner >> inode;
        if (kind == "FLOCK" && owner == std::to_string(pid) &&
            inode.ends_with(":" + std::to_string(status.st_ino))) {
            return pid;
        }
    }
    return 0;
}

instance_lock::instance_lock(const std::filesystem::path& state_dir) {
    ensure_private_directory(state_dir);
    const std::filesystem::path file = state_dir / "lock";
    for (;;) {
        unique_fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!fd) throw_errno("cannot open " + file.string());
        while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EINTR) continue;
            if (errno != EWOULDBLOCK) throw_errno("cannot lock " + file.string());
            const pid_t owner = owner_of(fd.get());
            throw already_running("another daemon " +
                                      (owner > 0 ? "(pid " + std::to_string(owner) + ") " : "") +
                                      "owns " + state_dir.string(),
                                  owner);
        }
        // Somebody may have removed the file between the open and the lock, and others lock a new
        // one.
        if (!still_there(fd.get(), file)) continue;

        // Over the last one's, which takes no space on a full disk. It is for people: without it
        // the lock is as good.
        const std::string pid = std::to_string(::getpid()) + "\n";
        const bool written =
            ::pwrite(fd.get(), pid.data(), pid.size(), 0) == static_cast<ssize_t>(pid.size());
        (void)!::ftruncate(fd.get(), written ? static_cast<off_t>(pid.size()) : 0);
        fd_ = std::move(fd);
        return;
    }
}

} // namespace sandboxd::sys
