#include "sync/archive_input.hpp"

#include "base/error.hpp"
#include "sync/helper.hpp"
#include "sys/system_error.hpp"

#include <archive_entry.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sandboxd::sync {
namespace {

constexpr std::size_t piece = 256U << 10;
// The tar reader may have that much before it asks for a header, so it is little.
constexpr std::size_t content_at_once = 64U << 10;
constexpr std::size_t header_at_once = 8U << 10;

} // namespace

archive_input::archive_input(part_feed& feed)
    : feed_(feed), packed_(piece), unpacker_(::archive_read_new()) {
    ::archive_read_support_filter_gzip(unpacker_.get());
    ::archive_read_support_format_raw(unpacker_.get());
}

int archive_input::feed_into(::archive* reader) {
    ::archive_entry* all = nullptr;
    int code = ::archive_read_open(unpacker_.get(), this, nullptr,
                                   callback<&archive_input::next_packed>, nullptr);
    if (code == ARCHIVE_OK) code = ::archive_read_next_header(unpacker_.get(), &all);
    if (code != ARCHIVE_OK) return ARCHIVE_FATAL;
    return ::archive_read_open(reader, this, nullptr, callback<&archive_input::next_plain>,
                               nullptr);
}

void archive_input::expect_header(bool header) noexcept {
    in_header_ = header;
    for_header_ = 0;
}

void archive_input::drain() {
    const void* bytes = nullptr;
    while (next_packed(&bytes) > 0) {
    }
}

void archive_input::rethrow_trouble() const {
    if (trouble_) std::rethrow_exception(trouble_);
}

la_ssize_t archive_input::next_packed(const void** bytes) {
    for (;;) {
        if (!part_) {
            part_ = feed_.take();
            position_ = 0;
            if (!part_) return 0;
        }
        const ssize_t got = ::pread(part_.get(), packed_.data(), packed_.size(), position_);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) sys::throw_errno("cannot read a temporary file");
        if (got == 0) {
            part_.reset();
            continue;
        }
        position_ += got;
        *bytes = packed_.data();
        return got;
    }
}

la_ssize_t archive_input::next_plain(const void** bytes) {
    while (plain_.empty()) {
        const void* found = nullptr;
        std::size_t size = 0;
        la_int64_t offset = 0;
        const int code = ::archive_read_data_block(unpacker_.get(), &found, &size, &offset);
        if (code == ARCHIVE_EOF) return 0;
        if (code != ARCHIVE_OK) return -1;
        plain_ = {static_cast<const char*>(found), size};
    }
    const std::string_view now = plain_.substr(0, in_header_ ? header_at_once : content_at_once);
    if (in_header_) {
        if (for_header_ >= longest_header) {
            throw rpc_error(error_name::sync_failed,
                            "what the sandbox sent has a member whose header, or map of a sparse "
                            "file, is longer than any proper one");
        }
        for_header_ += now.size();
    }
    plain_.remove_prefix(now.size());
    *bytes = now.data();
    return static_cast<la_ssize_t>(now.size());
}

template <la_ssize_t (archive_input::*next)(const void**)>
la_ssize_t archive_input::callback(::archive*, void* self, const void** bytes) {
    auto& here = *static_cast<archive_input*>(self);
    try {
        return (here.*next)(bytes);
    } catch (...) { // not through a C library
        here.trouble_ = std::current_exception();
        return -1;
    }
}

} // namespace sandboxd::sync
