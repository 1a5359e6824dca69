// The tar of what is pushed, produced part by part while it is read from disk.
//
// Blocking, and used by one thread at a time; never more than a piece of a file is in memory. A
// file that cannot be opened is left out and named; one that changes while it is read is in the
// archive, but marked as not to be unpacked. Errors of the spool are std::system_error.
#pragma once

#include "sync/manifest.hpp"
#include "sync/part_writer.hpp"
#include "sync/scan.hpp"
#include "sync/source_file.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sandboxd::sync {

// One member of the archive, in its order.
struct sent_member {
    std::size_t entry = 0; // index into what was to be sent
    bool torn = false;     // it changed while it was read
    manifest_entry record; // what the manifest will say once it is in place
};

class archive_writer {
public:
    // `what` stays the caller's and outlives this.
    archive_writer(std::span<const local_entry> what, std::filesystem::path spool_directory,
                   const std::atomic<bool>& stop);
    ~archive_writer();
    archive_writer(const archive_writer&) = delete;
    archive_writer& operator=(const archive_writer&) = delete;

    // The next part; nothing after the last. Throws std::system_error (ECANCELED when stopped).
    std::optional<part> next(std::uint64_t part_size, double rate);
    bool ended() const noexcept { return ended_; } // that was the last one
    // The next part is to be written over what is in that; not while next() is under way.
    void recycle(sys::unique_fd fd) { parts_.recycle(std::move(fd)); }

    // Complete once next() has returned nothing; before that, all whose last byte next() has handed
    // over, and maybe some more.
    const std::vector<sent_member>& members() const noexcept { return members_; }
    const std::vector<skipped_path>& skipped() const noexcept { return skipped_; }

private:
    struct output;

    void check_not_stopped() const;
    void advance(); // one step: a header, a piece of a file, or the end
    void begin_member(const local_entry& entry);
    void begin_file(const local_entry& entry);
    void continue_file();
    void end_file_if_read();
    void write_header(const local_entry& entry, std::uint64_t size);
    void write_data(std::uint64_t offset, std::size_t size);
    void write_zeros(std::uint64_t size);

    const std::span<const local_entry> what_;
    const std::atomic<bool>& stop_;
    part_writer parts_;
    std::unique_ptr<output> out_;
    std::size_t next_ = 0; // entry to begin
    bool ended_ = false;

    std::optional<source_file> file_; // under way
    std::size_t stretch_ = 0;         // of it
    std::uint64_t position_ = 0;      // in it, holes included
    std::int64_t opened_at_ = 0;
    bool torn_ = false;
    content_digest digest_;
    std::vector<char> buffer_;

    std::vector<sent_member> members_;
    std::vector<skipped_path> skipped_;
};

} // namespace sandboxd::sync
