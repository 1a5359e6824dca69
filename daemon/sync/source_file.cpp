#include "sync/source_file.hpp"

#include "sys/system_error.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace sandboxd::sync {
namespace {

constexpr std::size_t piece = 256U << 10;
// A file with more is not worth to be told hole by hole: each takes memory here and in the archive.
constexpr std::size_t most_stretches = 10'000;

std::int64_t nanoseconds(const struct timespec& time) {
    // Some file systems know of times that are 300 years away; those all look the same.
    constexpr std::int64_t most_seconds = 9'000'000'000;
    const std::int64_t seconds = std::clamp<std::int64_t>(time.tv_sec, -most_seconds, most_seconds);
    return seconds * 1'000'000'000 + time.tv_nsec;
}

} // namespace

file_print print_of(const struct stat& status) {
    return {static_cast<std::uint64_t>(status.st_size), nanoseconds(status.st_mtim),
            nanoseconds(status.st_ctim), status.st_ino};
}

unsigned mode_of(const struct stat& status) {
    return status.st_mode & 0777U;
}

source_file::source_file(const std::string& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) {
    if (!fd_) sys::throw_errno("cannot open " + path);
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) sys::throw_errno("cannot examine " + path);
    if (!S_ISREG(status.st_mode)) sys::throw_errno(path + " is not a regular file", EINVAL);
    print_ = print_of(status);
    modified_ = status.st_mtim.tv_sec;
    mode_ = mode_of(status);
    // 512: what st_blocks counts in, whatever the file system's own blocks are.
    sparse_ = static_cast<std::uint64_t>(status.st_blocks) * 512 < print_.size;
    if (sparse_) find_stretches();
    if (!sparse_) stretches_.assign(1, stretch{0, print_.size});
}

void source_file::find_stretches() {
    std::uint64_t at = 0;
    while (at < print_.size) {
        const off_t data = ::lseek(fd_.get(), static_cast<off_t>(at), SEEK_DATA);
        if (data < 0 && errno == ENXIO) return; // holes up to the end
        const off_t hole = data < 0 ? data : ::lseek(fd_.get(), data, SEEK_HOLE);
        // `hole < 0`: a file system that compresses, and does not tell.
        if (hole < 0 || stretches_.size() == most_stretches) {
            sparse_ = false;
            stretches_.clear();
            return;
        }
        at = std::min(static_cast<std::uint64_t>(hole), print_.size);
        if (static_cast<std::uint64_t>(data) >= at) return; // it is being cut short
        stretches_.push_back(
            {static_cast<std::uint64_t>(data), at - static_cast<std::uint64_t>(data)});
    }
}

std::size_t source_file::read(std::uint64_t offset, std::span<char> into) const {
    std::size_t total = 0;
    while (total < into.size()) {
        const ssize_t got = ::pread(fd_.get(), into.data() + total, into.size() - total,
                                    static_cast<off_t>(offset + total));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) sys::throw_errno("cannot read");
        if (got == 0) break;
        total += static_cast<std::size_t>(got);
    }
    return total;
}

bool source_file::still_the_same() const {
    struct stat status {};
    return ::fstat(fd_.get(), &status) == 0 && print_of(status) == print_;
}

bool source_file::hides_its_size() const {
    char first = 0;
    return print_.size == 0 && ::pread(fd_.get(), &first, 1, 0) == 1 && still_the_same();
}

void content_digest::begin(const source_file& file) {
    next_ = 0;
    digest_.take();
    digest_.add(std::to_string(file.print().size) + "\n");
}

void content_digest::add(std::uint64_t offset, std::span<const char> bytes) {
    if (offset != next_) digest_.add("hole up to " + std::to_string(offset) + "\n");
    digest_.add(bytes.data(), bytes.size());
    next_ = offset + bytes.size();
}

std::optional<content_now> digest_of_file(const std::string& path, const std::atomic<bool>& stop) {
    const source_file file(path);
    content_digest digest;
    digest.begin(file);
    std::vector<char> buffer(
        std::min<std::uint64_t>(piece, std::max<std::uint64_t>(1, file.print().size)));
    for (const source_file::stretch& each : file.stretches()) {
        for (std::uint64_t done = 0; done < each.size;) {
            if (stop) sys::throw_errno("stopped", ECANCELED);
            const auto wanted = std::min<std::uint64_t>(buffer.size(), each.size - done);
            const std::size_t got = file.read(each.offset + done, {buffer.data(), wanted});
            if (got < wanted) return std::nullopt;
            digest.add(each.offset + done, {buffer.data(), got});
            done += got;
        }
    }
    if (!file.still_the_same()) return std::nullopt;
    return content_now{digest.take(), file.print()};
}

std::int64_t wall_clock() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

} // namespace sandboxd::sync
