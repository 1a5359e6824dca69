// A file of the host that is read to be sent: where it has data, and whether it stayed as it was.
//
// Blocking. Owns the descriptor. Errors are std::system_error with an errno of the host.
#pragma once

#include "base/digest.hpp"
#include "sync/manifest.hpp"
#include "sys/fd.hpp"

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sandboxd::sync {

file_print print_of(const struct stat& status);
unsigned mode_of(const struct stat& status); // permission bits; setuid and its like do not travel

class source_file {
public:
    struct stretch {
        std::uint64_t offset = 0;
        std::uint64_t size = 0;
    };

    // Follows no link; EINVAL for what is not a regular file.
    explicit source_file(const std::string& path);

    const file_print& print() const noexcept { return print_; }
    std::int64_t modified() const noexcept { return modified_; } // seconds since 1970
    unsigned mode() const noexcept { return mode_; }
    bool sparse() const noexcept { return sparse_; }
    // Where there is data, in order; what lies between is holes. One of all the file if not sparse.
    const std::vector<stretch>& stretches() const noexcept { return stretches_; }

    // How much was read; less than asked for only where the file ended.
    std::size_t read(std::uint64_t offset, std::span<char> into) const;
    bool still_the_same() const; // as when it was opened
    // As files of /proc do: how much there is of them shows only when they are read.
    bool hides_its_size() const;

private:
    void find_stretches();

    sys::unique_fd fd_;
    file_print print_;
    std::int64_t modified_ = 0;
    unsigned mode_ = 0;
    bool sparse_ = false;
    std::vector<stretch> stretches_;
};

// The digest that a manifest keeps: of the data, and of where the holes are.
class content_digest {
public:
    void begin(const source_file& file);
    void add(std::uint64_t offset, std::span<const char> bytes);
    std::string take() { return digest_.take(); }

private:
    digest digest_;
    std::uint64_t next_ = 0;
};

struct content_now {
    std::string digest;
    file_print print;
};
// Reads all of it. Nothing if it changed meanwhile. Throws ECANCELED once `stop` is set.
std::optional<content_now> digest_of_file(const std::string& path, const std::atomic<bool>& stop);

std::int64_t wall_clock(); // nanoseconds since 1970

} // namespace sandboxd::sync
