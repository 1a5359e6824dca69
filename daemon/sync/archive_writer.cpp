#include "sync/archive_writer.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

namespace sandboxd::sync {
namespace {

constexpr std::size_t piece = 256U << 10;

} // namespace

struct archive_writer::output {
    ::archive* writer = ::archive_write_new();
    ::archive_entry* entry = ::archive_entry_new();
    part_writer* parts = nullptr;
    std::exception_ptr trouble;

    output() = default;
    output(const output&) = delete;
    output& operator=(const output&) = delete;
    ~output() {
        ::archive_entry_free(entry);
        // Closes it, without which libarchive would leak its buffer; an archive that is given up
        // needs no end, so the first byte of that is refused.
        parts = nullptr;
        ::archive_write_free(writer);
    }

    static la_ssize_t put(::archive*, void* self, const void* bytes, std::size_t size) {
        auto& here = *static_cast<output*>(self);
        if (here.parts == nullptr) return -1;
        try {
            if (!here.trouble) here.parts->write({static_cast<const char*>(bytes), size});
        } catch (...) { // not through a C library, which would not close after an error
            here.trouble = std::current_exception();
        }
        return static_cast<la_ssize_t>(size);
    }
    void check(la_ssize_t code) const {
        if (trouble) std::rethrow_exception(trouble);
        if (code < ARCHIVE_WARN) {
            throw std::system_error(EIO, std::generic_category(), ::archive_error_string(writer));
        }
    }
};

archive_writer::archive_writer(std::span<const local_entry> what,
                               std::filesystem::path spool_directory, const std::atomic<bool>& stop)
    : what_(what), stop_(stop), parts_(std::move(spool_directory)),
      out_(std::make_unique<output>()), buffer_(piece) {
    out_->parts = &parts_;
    ::archive* writer = out_->writer;
    ::archive_write_set_format_pax_restricted(writer);
    // Names are bytes: nothing is to be converted, whatever the locale.
    ::archive_write_set_format_option(writer, "pax", "hdrcharset", "BINARY");
    ::archive_write_set_bytes_per_block(writer, piece);
    ::archive_write_set_bytes_in_last_block(writer, 1);
    out_->check(::archive_write_open(writer, out_.get(), nullptr, output::put, nullptr));
}

archive_writer::~archive_writer() = default;

std::optional<part> archive_writer::next(std::uint64_t part_size, double rate) {
    parts_.plan(part_size, rate);
    while (!ended_ && !parts_.full()) {
        check_not_stopped();
        advance();
    }
    return parts_.take();
}

void archive_writer::check_not_stopped() const {
    if (stop_) throw std::system_error(ECANCELED, std::generic_category(), "stopped");
}

void archive_writer::advance() {
    if (file_) {
        continue_file();
    } else if (next_ < what_.size()) {
        begin_member(what_[next_++]);
    } else {
        out_->check(::archive_write_close(out_->writer));
        ended_ = true;
    }
}

void archive_writer::begin_member(const local_entry& entry) {
    if (entry.kind == file_kind::file) {
        begin_file(entry);
        return;
    }
    digest digest;
    digest.add(entry.link);
    const bool link = entry.kind == file_kind::link;
    write_header(entry, 0);
    members_.push_back(
        {next_ - 1,
         false,
         {entry.kind, entry.mode, entry.print, link && is_doubtful(entry.print, entry.read_at),
          link ? digest.take() : std::string()}});
}

void archive_writer::begin_file(const local_entry& entry) {
    opened_at_ = wall_clock();
    try {
        file_.emplace(entry.host);
    } catch (const std::system_error& problem) {
        const int error = problem.code().value();
        const bool gone = error == ENOENT || error == ENOTDIR;
        skipped_.push_back({entry.host, entry.remote,
                            gone ? skip_reason::missing : skip_reason::unreadable,
                            problem.code().message()});
        return;
    }
    if (file_->hides_its_size()) {
        file_.reset();
        skipped_.push_back({entry.host, entry.remote, skip_reason::special,
                            "it is told to be empty, and is not: a file of the kernel's"});
        return;
    }
    stretch_ = 0;
    position_ = 0;
    torn_ = false;
    digest_.begin(*file_);
    write_header(entry, file_->print().size);
    end_file_if_read();
}

void archive_writer::write_header(const local_entry& entry, std::uint64_t size) {
    ::archive_entry* header = ::archive_entry_clear(out_->entry);
    ::archive_entry_set_pathname(header, entry.remote.c_str() + 1); // relative to /
    ::archive_entry_set_size(header, static_cast<la_int64_t>(size));
    unsigned mode = entry.mode;
    switch (entry.kind) {
    case file_kind::file:
        ::archive_entry_set_filetype(header, AE_IFREG);
        mode = file_->mode();
        // Whole seconds, as anything finer would cost a second header a file.
        ::archive_entry_set_mtime(header, file_->modified(), 0);
        if (file_->sparse()) {
            for (const source_file::stretch& each : file_->stretches()) {
                ::archive_entry_sparse_add_entry(header, static_cast<la_int64_t>(each.offset),
                                                 static_cast<la_int64_t>(each.size));
            }
            if (file_->stretches().empty()) {
                ::archive_entry_sparse_add_entry(header, static_cast<la_int64_t>(size), 0);
            }
        }
        break;
    case file_kind::directory:
        ::archive_entry_set_filetype(header, AE_IFDIR);
        break;
    case file_kind::link:
        ::archive_entry_set_filetype(header, AE_IFLNK);
        ::archive_entry_set_symlink(header, entry.link.c_str());
        break;
    }
    ::archive_entry_set_perm(header, mode);
    out_->check(::archive_write_header(out_->writer, header));
}

// The writer wants all of a file, and takes the holes out by what the header said.
void archive_writer::continue_file() {
    const source_file::stretch& now = file_->stretches()[stretch_];
    if (position_ < now.offset) write_zeros(now.offset - position_);
    const std::uint64_t left = now.offset + now.size - position_;
    write_data(position_, static_cast<std::size_t>(std::min<std::uint64_t>(left, piece)));
    if (position_ == now.offset + now.size) ++stretch_;
    end_file_if_read();
}

void archive_writer::write_data(std::uint64_t offset, std::size_t size) {
    std::size_t got = 0;
    try {
        got = file_->read(offset, {buffer_.data(), size});
    } catch (const std::system_error&) {
        // A bad disk: the rest is made up, and not unpacked.
    }
    if (got < size) {
        torn_ = true;
        std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(got),
                  buffer_.begin() + static_cast<std::ptrdiff_t>(size), '\0');
    }
    digest_.add(offset, {buffer_.data(), size});
    out_->check(::archive_write_data(out_->writer, buffer_.data(), size));
    position_ += size;
}

void archive_writer::write_zeros(std::uint64_t size) {
    static const std::vector<char> zeros(piece);
    while (size > 0) {
        check_not_stopped(); // a hole may be of any size
        const auto now = static_cast<std::size_t>(std::min<std::uint64_t>(size, zeros.size()));
        out_->check(::archive_write_data(out_->writer, zeros.data(), now));
        position_ += now;
        size -= now;
    }
}

// Together with its last piece: whether it is torn has to be known before that is sent.
void archive_writer::end_file_if_read() {
    if (stretch_ < file_->stretches().size()) return;
    write_zeros(file_->print().size - position_);
    const bool torn = torn_ || !file_->still_the_same();
    members_.push_back({next_ - 1,
                        torn,
                        {file_kind::file, file_->mode(), file_->print(),
                         is_doubtful(file_->print(), opened_at_), digest_.take()}});
    file_.reset();
}

} // namespace sandboxd::sync
