#include "sys/file.hpp"

#include "sys/fd.hpp"
#include "sys/system_error.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>

namespace sandboxd::sys {
namespace fs = std::filesystem;
namespace {

void write_all(int fd, std::string_view bytes, const std::string& name) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd, bytes.data(), bytes.size());
        if (n < 0) {
            if (errno == EINTR) continue;
            throw_errno("cannot write " + name);
        }
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
}

unique_fd open_directory(const fs::path& directory) {
    unique_fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) throw_errno("cannot open directory " + directory.string());
    return fd;
}

// 0700 whatever the umask. False: that failed (errno), other than because it is there.
bool make_directory(const fs::path& directory) {
    if (::mkdir(directory.c_str(), 0700) != 0) return errno == EEXIST;
    return ::chmod(directory.c_str(), 0700) == 0;
}

// mkdir -p.
void make_directories(const fs::path& directory) {
    if (make_directory(directory)) return;
    if (errno != ENOENT || !directory.has_parent_path() || directory.parent_path() == directory) {
        throw_errno("cannot make directory " + directory.string());
    }
    make_directories(directory.parent_path());
    if (!make_directory(directory)) throw_errno("cannot make directory " + directory.string());
}

} // namespace

std::optional<std::string> read_file(const fs::path& file, std::size_t limit) {
    // O_NONBLOCK: opening a FIFO that was put there must not hang.
    const unique_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) {
        if (errno == ENOENT) return std::nullopt;
        throw_errno("cannot open " + file.string());
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw_errno("cannot examine " + file.string());
    if (!S_ISREG(status.st_mode)) throw_errno(file.string() + " is not a regular file", EINVAL);
    return read_all(fd.get(), file.string(), limit);
}

std::string read_all(int fd, const std::string& name, std::size_t limit) {
    std::string content;
    char buffer[1 << 16];
    for (;;) {
        const ssize_t n = ::read(fd, buffer, sizeof buffer);
        if (n < 0) {
            if (errno == EINTR) continue;
            throw_errno("cannot read " + name);
        }
        if (n == 0) return content;
        content.append(buffer, static_cast<std::size_t>(n));
        if (content.size() > limit) throw_errno("cannot read " + name, EFBIG);
    }
}

void atomic_write(const fs::path& file, std::string_view bytes, mode_t mode) {
    const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
    const unique_fd parent = open_directory(directory);
    const fs::path temporary = file.string() + ".tmp";

    // What a crash left there goes first, so that O_EXCL can refuse to follow a link.
    if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
        throw_errno("cannot remove " + temporary.string());
    }
    unique_fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) throw_errno("cannot make " + temporary.string());
    try {
        if (::fchmod(fd.get(), mode) != 0) throw_errno("cannot chmod " + temporary.string());
        write_all(fd.get(), bytes, temporary.string());
        // Before the rename: otherwise a crash may leave the new name with old or no content.
        if (::fsync(fd.get()) != 0) throw_errno("cannot sync " + temporary.string());
        if (::close(fd.release()) != 0) throw_errno("cannot close " + temporary.string());
        if (::rename(temporary.c_str(), file.c_str()) != 0) {
            throw_errno("cannot replace " + file.string());
        }
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
    if (::fsync(parent.get()) != 0) throw_errno("cannot sync directory " + directory.string());
}

void ensure_private_directory(const fs::path& directory) {
    make_directories(directory);
    const unique_fd fd = open_directory(directory);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw_errno("cannot examine " + directory.string());
    if (status.st_uid != ::geteuid()) {
        throw_errno("directory " + directory.string() + " belongs to user " +
                        std::to_string(status.st_uid) + ", not to us",
                    EPERM);
    }
    if ((status.st_mode & 077) != 0) {
        char mode[8];
        std::snprintf(mode, sizeof mode, "%04o", status.st_mode & 07777u);
        const bool shared = (status.st_mode & S_ISVTX) != 0; // as /tmp is, and has to stay
        throw_errno("directory " + directory.string() + " is open to others (mode " + mode + "; " +
                        (shared ? "name one of your own below it, such as " +
                                      (directory / "deepinfra-sandboxd").string()
                                : "this closes it: chmod 700 " + directory.string()) +
                        ")",
                    EPERM);
    }
}

} // namespace sandboxd::sys
