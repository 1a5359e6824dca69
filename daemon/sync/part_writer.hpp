// Cuts a stream into parts that wait in spool files, each compressed by itself where that pays.
//
// Blocking. A part is handed over with its descriptor, which may come back to be written over: that
// spares the kernel to find fresh pages for every byte. Errors are std::system_error.
#pragma once

#include "sys/fd.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sandboxd::sync {

struct part {
    sys::unique_fd fd;
    std::uint64_t size = 0;  // of what is in the file
    std::uint64_t plain = 0; // before compression
};

// A gzip stream into a descriptor.
class compressor {
public:
    // `size` is counted up as bytes are written.
    compressor(int fd, std::uint64_t& size);
    ~compressor();
    compressor(const compressor&) = delete;
    compressor& operator=(const compressor&) = delete;
    void write(std::string_view bytes);
    void finish();

private:
    struct state;
    std::unique_ptr<state> state_;
};

class part_writer {
public:
    explicit part_writer(std::filesystem::path spool_directory)
        : directory_(std::move(spool_directory)) {}

    // For the parts that are begun from now on: their size, and the line's speed in bytes a second.
    void plan(std::uint64_t part_size, double rate) noexcept {
        part_size_ = part_size;
        rate_ = rate;
    }
    // At most `largest_piece` bytes.
    void write(std::string_view bytes);
    bool full() const noexcept { return current_ && current_->size >= part_size_; }
    // The part as it is, and begins a new one with the next write; nothing if it would be empty.
    std::optional<part> take();
    // To be written over by the next part that is begun.
    void recycle(sys::unique_fd fd);

    static constexpr std::size_t largest_piece = 512U << 10;

private:
    sys::unique_fd spool();
    bool worth_compressing(std::string_view sample);

    std::filesystem::path directory_;
    std::uint64_t part_size_ = 0;
    double rate_ = 0;
    double compressor_rate_ = 0; // of the quickest sample that was tried
    sys::unique_fd spare_;
    std::unique_ptr<part> current_; // its address is the compressor's too
    std::unique_ptr<compressor> compressor_;
};

} // namespace sandboxd::sync
