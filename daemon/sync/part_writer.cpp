#include "sync/part_writer.hpp"

#include "sync/pace.hpp"
#include "sync/spool.hpp"
#include "sys/system_error.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace sandboxd::sync {
namespace {

constexpr std::size_t sample_size = 128U << 10;
constexpr std::uint64_t not_worth_a_thought = 4U << 10;

struct archive_free {
    void operator()(::archive* what) const { ::archive_write_free(what); }
};

} // namespace

// libarchive's gzip around a "raw" archive, which is nothing but its one member's content.
struct compressor::state {
    std::unique_ptr<::archive, archive_free> writer{::archive_write_new()};
    int fd = -1;
    std::uint64_t* size = nullptr;
    std::exception_ptr trouble;

    static la_ssize_t put(::archive*, void* self, const void* bytes, std::size_t size) {
        auto& here = *static_cast<state*>(self);
        try {
            if (!here.trouble) append(here.fd, {static_cast<const char*>(bytes), size});
            *here.size += size;
        } catch (...) { // not through a C library, which would not close after an error
            here.trouble = std::current_exception();
        }
        return static_cast<la_ssize_t>(size);
    }
    void check(bool good) const {
        if (trouble) std::rethrow_exception(trouble);
        if (!good) {
            throw std::system_error(EIO, std::generic_category(),
                                    ::archive_error_string(writer.get()));
        }
    }
};

compressor::compressor(int fd, std::uint64_t& size) : state_(std::make_unique<state>()) {
    ::archive* writer = state_->writer.get();
    state_->fd = fd;
    state_->size = &size;
    ::archive_write_set_format_raw(writer);
    ::archive_write_add_filter_gzip(writer);
    ::archive_write_set_filter_option(writer, "gzip", "compression-level", "1");
    ::archive_write_set_bytes_per_block(writer, 0);
    state_->check(::archive_write_open(writer, state_.get(), nullptr, state::put, nullptr) ==
                  ARCHIVE_OK);
    ::archive_entry* entry = ::archive_entry_new();
    ::archive_entry_set_filetype(entry, AE_IFREG);
    const bool good = ::archive_write_header(writer, entry) == ARCHIVE_OK;
    ::archive_entry_free(entry);
    state_->check(good);
}

compressor::~compressor() = default;

void compressor::write(std::string_view bytes) {
    const auto wrote = ::archive_write_data(state_->writer.get(), bytes.data(), bytes.size());
    state_->check(wrote == static_cast<la_ssize_t>(bytes.size()));
}

void compressor::finish() {
    state_->check(::archive_write_close(state_->writer.get()) == ARCHIVE_OK);
}

void part_writer::write(std::string_view bytes) {
    if (bytes.empty()) return;
    if (!current_) {
        current_ = std::make_unique<part>();
        current_->fd = spool();
        if (worth_compressing(bytes)) {
            compressor_ = std::make_unique<compressor>(current_->fd.get(), current_->size);
        }
    }
    current_->plain += bytes.size();
    if (compressor_) {
        compressor_->write(bytes);
    } else {
        append(current_->fd.get(), bytes);
        current_->size += bytes.size();
    }
}

std::optional<part> part_writer::take() {
    if (!current_) return std::nullopt;
    if (compressor_) {
        compressor_->finish();
        compressor_.reset();
    }
    std::optional<part> whole(std::move(*current_));
    current_.reset();
    return whole;
}

void part_writer::recycle(sys::unique_fd fd) {
    spare_ = std::move(fd);
}

sys::unique_fd part_writer::spool() {
    if (!spare_) return open_spool(directory_);
    if (::lseek(spare_.get(), 0, SEEK_SET) != 0) sys::throw_errno("cannot use a temporary file");
    return std::move(spare_);
}

bool part_writer::worth_compressing(std::string_view sample) {
    if (sample.size() < not_worth_a_thought) return false;
    // Nor could it, were there nothing left of it: most of a quick line's parts are not even tried.
    if (compressor_rate_ > 0 && !compression_pays(0, rate_, compressor_rate_)) return false;
    sample = sample.substr(0, sample_size);
    const sys::unique_fd scratch = open_spool(directory_);
    std::uint64_t size = 0;
    compressor attempt(scratch.get(), size);
    const auto begun = std::chrono::steady_clock::now();
    attempt.write(sample);
    attempt.finish();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    // The quickest try tells most of the machine; a slow one may have had to wait for a processor.
    compressor_rate_ = std::max(compressor_rate_,
                                static_cast<double>(sample.size()) / std::max(took.count(), 1e-6));
    const double ratio = static_cast<double>(size) / static_cast<double>(sample.size());
    return compression_pays(ratio, rate_, compressor_rate_);
}

} // namespace sandboxd::sync
