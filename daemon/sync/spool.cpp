#include "sync/spool.hpp"

#include "sys/system_error.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace sandboxd::sync {

namespace {

sys::unique_fd open_nameless(const std::filesystem::path& directory) {
    sys::unique_fd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (fd) return fd;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
        sys::throw_errno("cannot make a temporary file in " + directory.string());
    }
    // A file system without nameless files: one that loses its name at once.
    std::string name = (directory / "spool-XXXXXX").string();
    fd.reset(::mkostemp(name.data(), O_CLOEXEC));
    if (!fd) sys::throw_errno("cannot make a temporary file in " + directory.string());
    ::unlink(name.c_str());
    return fd;
}

} // namespace

sys::unique_fd open_spool(const std::filesystem::path& directory, std::uint64_t size) {
    sys::unique_fd fd = open_nameless(directory);
    // Its length stays: whoever reads goes by it.
    if (size > 0 && ::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size)) != 0 &&
        (errno == ENOSPC || errno == EDQUOT)) {
        sys::throw_errno("cannot make room for a temporary file in " + directory.string());
    }
    return fd;
}

void append(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) sys::throw_errno("cannot write to a temporary file");
        bytes.remove_prefix(static_cast<std::size_t>(wrote));
    }
}

void replace_file(const std::filesystem::path& file, std::string_view bytes) {
    const std::string aside = file.string() + ".tmp";
    const sys::unique_fd fd(
        ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) sys::throw_errno("cannot make " + aside);
    append(fd.get(), bytes);
    if (::rename(aside.c_str(), file.c_str()) != 0) {
        sys::throw_errno("cannot replace " + file.string());
    }
}

} // namespace sandboxd::sync
