// The parts of an archive as libarchive's tar reader takes them: unpacked, and never much of them
// for one header.
//
// libarchive keeps a header whole, and with it a sparse file's map of stretches, of which it takes
// any number: a few megabytes from a sandbox would become hundreds here. So what is read for one
// header is counted. For archive_reader.cpp only; on the reading thread.
#pragma once

#include "sync/part_feed.hpp"

#include <archive.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

namespace sandboxd::sync {

struct archive_read_closer {
    void operator()(::archive* what) const { ::archive_read_free(what); }
};
using archive_read_handle = std::unique_ptr<::archive, archive_read_closer>;

class archive_input {
public:
    explicit archive_input(part_feed& feed);
    archive_input(const archive_input&) = delete;
    archive_input& operator=(const archive_input&) = delete;

    // Becomes what `reader` reads; answers as libarchive does.
    int feed_into(::archive* reader);
    // What is read from now on is one member's header, until the next call says otherwise.
    void expect_header(bool header) noexcept;
    // Takes whatever follows the archive's end: it is still to be fetched.
    void drain();
    // What went wrong while libarchive was reading, which can only be told that something did.
    void rethrow_trouble() const;

private:
    la_ssize_t next_packed(const void** bytes);
    la_ssize_t next_plain(const void** bytes);
    template <la_ssize_t (archive_input::*next)(const void**)>
    static la_ssize_t callback(::archive*, void* self, const void** bytes);

    part_feed& feed_;
    sys::unique_fd part_;
    off_t position_ = 0;
    std::vector<char> packed_;
    archive_read_handle unpacker_;
    std::string_view plain_; // unpacked, and not taken yet
    bool in_header_ = false;
    std::size_t for_header_ = 0;
    std::exception_ptr trouble_;
};

} // namespace sandboxd::sync
