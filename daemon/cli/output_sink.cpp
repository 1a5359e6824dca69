#include "cli/output_sink.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace sandboxd::cli {
namespace {

constexpr std::size_t without_limit = 256U << 10;

} // namespace

output_sink::output_sink(int descriptor) : shared_(descriptor), most_(PIPE_BUF) {
    struct stat what {};
    if (::fstat(descriptor, &what) != 0) return; // closed: writing will say so
    if (S_ISFIFO(what.st_mode)) {
        // A pipe of another user cannot be opened again.
        own_ = sys::unique_fd(::open(("/proc/self/fd/" + std::to_string(descriptor)).c_str(),
                                     O_WRONLY | O_NONBLOCK | O_CLOEXEC));
        if (own_) most_ = without_limit;
    } else if (S_ISREG(what.st_mode) || (S_ISCHR(what.st_mode) && ::isatty(descriptor) == 0)) {
        most_ = without_limit; // nobody has to read it first
    }
}

ssize_t output_sink::write(std::string_view bytes) {
    return ::write(fd(), bytes.data(), bytes.size() < most_ ? bytes.size() : most_);
}

} // namespace sandboxd::cli
