#include "sync/archive_reader.hpp"

#include "base/error.hpp"
#include "sync/archive_input.hpp"
#include "sync/path.hpp"
#include "sync/spool.hpp"
#include "sys/system_error.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace sandboxd::sync {
namespace {

constexpr std::size_t piece = 256U << 10;
constexpr std::size_t most_links = 1'000'000; // as each takes memory until the end
constexpr std::size_t most_directories = 1'000'000;
constexpr std::size_t most_named = 1000; // left-out members that are remembered one by one

[[noreturn]] void broken(const std::string& how) {
    throw rpc_error(error_name::sync_failed, "what the sandbox sent " + how);
}

struct write_free {
    void operator()(::archive* what) const { ::archive_write_free(what); }
};
struct entry_free {
    void operator()(::archive_entry* what) const { ::archive_entry_free(what); }
};
using write_handle = std::unique_ptr<::archive, write_free>;
using entry_handle = std::unique_ptr<::archive_entry, entry_free>;

// Where members go.
class sink {
public:
    virtual ~sink() = default;
    // False: it is left out, and why() says so.
    virtual bool begin(::archive_entry* entry) = 0;
    virtual bool data(std::uint64_t offset, const void* bytes, std::size_t size) = 0;
    virtual bool end() = 0;
    virtual void finish() = 0;
    virtual std::string why() const = 0;
};

// libarchive's own writer to disk, with all it can refuse refused.
class disk_sink final : public sink {
public:
    // `relative`: all names are, so that an absolute one can be refused too.
    explicit disk_sink(bool relative) : writer_(::archive_write_disk_new()) {
        const int absolute = relative ? ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS : 0;
        ::archive_write_disk_set_options(
            writer_.get(), ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_UNLINK |
                               ARCHIVE_EXTRACT_SECURE_SYMLINKS | ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                               absolute);
    }
    bool begin(::archive_entry* entry) override {
        return good(::archive_write_header(writer_.get(), entry));
    }
    bool data(std::uint64_t offset, const void* bytes, std::size_t size) override {
        return good(::archive_write_data_block(writer_.get(), bytes, size,
                                               static_cast<la_int64_t>(offset)));
    }
    bool end() override { return good(::archive_write_finish_entry(writer_.get())); }
    void finish() override {
        if (::archive_write_close(writer_.get()) < ARCHIVE_WARN) throw_trouble();
    }
    std::string why() const override {
        const char* text = ::archive_error_string(writer_.get());
        return text == nullptr ? "it could not be written" : text;
    }

private:
    bool good(la_ssize_t code) const {
        const int error = code < ARCHIVE_OK ? ::archive_errno(writer_.get()) : 0;
        // A full disk concerns all that follows.
        if (error == ENOSPC || error == EDQUOT || code == ARCHIVE_FATAL) throw_trouble();
        return code >= ARCHIVE_WARN;
    }
    [[noreturn]] void throw_trouble() const {
        const int error = ::archive_errno(writer_.get());
        sys::throw_errno("cannot write what came: " + why(), error > 0 ? error : EIO);
    }
    write_handle writer_;
};

class tar_sink final : public sink {
public:
    tar_sink(int fd, const part_feed& feed)
        : fd_(fd), feed_(feed), writer_(::archive_write_new()), zeros_(piece) {
        ::archive_write_set_format_pax_restricted(writer_.get());
        ::archive_write_set_format_option(writer_.get(), "pax", "hdrcharset", "BINARY");
        ::archive_write_set_bytes_per_block(writer_.get(), piece);
        ::archive_write_set_bytes_in_last_block(writer_.get(), 1);
        check(::archive_write_open(writer_.get(), this, nullptr, put, nullptr));
    }
    // Closing is the only way to have libarchive's buffer freed; nothing is written any more.
    ~tar_sink() override { given_up_ = true; }
    tar_sink(const tar_sink&) = delete;
    tar_sink& operator=(const tar_sink&) = delete;

    bool begin(::archive_entry* entry) override {
        position_ = 0;
        size_ = static_cast<std::uint64_t>(::archive_entry_size(entry));
        check(::archive_write_header(writer_.get(), entry));
        return true;
    }
    // The writer wants the holes too, and takes them out by what the header said.
    bool data(std::uint64_t offset, const void* bytes, std::size_t size) override {
        fill(offset);
        check(::archive_write_data(writer_.get(), bytes, size));
        position_ += size;
        return true;
    }
    bool end() override {
        fill(size_);
        return true;
    }
    void finish() override { check(::archive_write_close(writer_.get())); }
    std::string why() const override { return {}; }

private:
    static la_ssize_t put(::archive*, void* self, const void* bytes, std::size_t size) {
        auto& here = *static_cast<tar_sink*>(self);
        if (here.given_up_) return -1;
        try {
            if (!here.trouble_) append(here.fd_, {static_cast<const char*>(bytes), size});
        } catch (...) {
            here.trouble_ = std::current_exception(); // see check()
        }
        return static_cast<la_ssize_t>(size); // told of a failure, libarchive forgets its buffer
    }
    void check(la_ssize_t code) const {
        if (trouble_) std::rethrow_exception(trouble_);
        if (code < ARCHIVE_WARN) {
            throw std::system_error(EIO, std::generic_category(),
                                    ::archive_error_string(writer_.get()));
        }
    }
    void fill(std::uint64_t up_to) {
        while (position_ < up_to) {
            feed_.check_wanted(); // a hole may be of any size
            const auto now = std::min<std::uint64_t>(up_to - position_, zeros_.size());
            check(::archive_write_data(writer_.get(), zeros_.data(), now));
            position_ += now;
        }
    }

    int fd_;
    const part_feed& feed_;
    std::exception_ptr trouble_;
    bool given_up_ = false;
    write_handle writer_; // writes until it is gone, so it goes first
    std::vector<char> zeros_;
    std::uint64_t position_ = 0;
    std::uint64_t size_ = 0;
};

class reader {
public:
    reader(part_feed& feed, const archive_rules& rules, sink& into)
        : rules_(rules), sink_(into), feed_(feed), input_(feed), archive_(::archive_read_new()) {
        ::archive_read_support_format_tar(archive_.get());
        ::archive_read_set_options(archive_.get(), "hdrcharset=BINARY");
    }

    // `leaf`: what the prefix is called in the sink; empty: as it is.
    archive_taken run(const std::string& leaf) {
        check(input_.feed_into(archive_.get()));
        ::archive_entry* entry = nullptr;
        std::uint64_t members = 0;
        for (;; ++members) {
            input_.expect_header(true);
            const int code = ::archive_read_next_header(archive_.get(), &entry);
            if (code == ARCHIVE_EOF) break;
            check(code);
            input_.expect_header(false);
            if (members == rules_.members) broken("has more members than it said");
            if (!rules_.drop.contains(members)) take(entry, leaf); // the drop was named already
            // Else it would be done while the next header is read.
            check(::archive_read_data_skip(archive_.get()));
        }
        if (members != rules_.members) broken("has fewer members than it said");
        sink_.finish();
        input_.drain();
        return std::move(taken_);
    }

private:
    void check(int code) const {
        input_.rethrow_trouble();
        if (code < ARCHIVE_WARN) broken("is no proper archive");
    }

    void skip(const std::string& name, skip_reason reason, std::string text) {
        if (taken_.skipped.size() < most_named) {
            taken_.skipped.push_back({{}, "/" + name, reason, std::move(text)});
        } else {
            ++taken_.skipped_more;
        }
    }

    void take(::archive_entry* entry, const std::string& leaf) {
        const char* path = ::archive_entry_pathname(entry);
        std::string name = path == nullptr ? "" : path;
        if (name.ends_with('/')) name.pop_back();
        if (const std::string problem = refusal(entry, name); !problem.empty()) {
            skip(name, skip_reason::refused, problem);
            return;
        }
        if (::archive_entry_filetype(entry) == AE_IFLNK) links_.insert(hash_of(name));
        if (::archive_entry_filetype(entry) == AE_IFDIR) directories_.insert(hash_of(name));
        const bool file = ::archive_entry_filetype(entry) == AE_IFREG;
        const auto size = static_cast<std::uint64_t>(file ? ::archive_entry_size(entry) : 0);
        if (size > rules_.max_bytes - taken_.bytes) broken("is more than it said");
        taken_.bytes += size;
        const entry_handle clean = cleaned(entry, name, leaf);
        if (!sink_.begin(clean.get())) {
            skip(name, skip_reason::failed, sink_.why());
            return;
        }
        bool good = !file || copy_data();
        good = sink_.end() && good;
        if (!good) skip(name, skip_reason::failed, sink_.why());
        if (good && ::archive_entry_filetype(entry) != AE_IFDIR) ++taken_.files;
    }

    // Why a member is not wanted; empty if it is.
    std::string refusal(::archive_entry* entry, const std::string& name) const {
        if (!member_is_inside(name, rules_.prefix)) return "it is not part of what was asked for";
        if (name.size() - rules_.prefix.size() > rules_.longest_below) {
            return "its path is longer than this system takes";
        }
        if (below_a_link(name)) return "it is below a link";
        if (::archive_entry_hardlink(entry) != nullptr) return "it is a hard link";
        const bool is_directory = ::archive_entry_filetype(entry) == AE_IFDIR;
        // libarchive keeps something for each directory it makes, were it the same again and again.
        if (!is_directory && directories_.contains(hash_of(name)))
            return "a directory is called so";
        if (is_directory && directories_.size() == most_directories) {
            return "there are too many directories";
        }
        switch (::archive_entry_filetype(entry)) {
        case AE_IFREG:
            return ::archive_entry_size_is_set(entry) && ::archive_entry_size(entry) >= 0
                       ? ""
                       : "it has no size";
        case AE_IFDIR:
            return "";
        case AE_IFLNK: {
            const std::string relative =
                name.substr(std::min(name.size(), rules_.prefix.size() + 1));
            const std::size_t slash = relative.rfind('/');
            const std::string directory =
                slash == std::string::npos ? std::string() : relative.substr(0, slash);
            const char* target = ::archive_entry_symlink(entry);
            const bool inside = !relative.empty() && target != nullptr &&
                                foreign_link_stays_inside(directory, target);
            if (!inside) return "the link leads out of what was asked for";
            return links_.size() < most_links ? "" : "there are too many links";
        }
        default:
            return "it is neither a file, a directory nor a link";
        }
    }

    static std::size_t hash_of(std::string_view name) {
        return std::hash<std::string_view>()(name);
    }

    // A link stays inside by its own name only. What follows must not go through it: whoever
    // unpacks a tar might, and two that are harmless may lead out together.
    bool below_a_link(const std::string& name) const {
        for (std::size_t slash = name.find('/'); slash != std::string::npos;
             slash = name.find('/', slash + 1)) {
            if (links_.contains(hash_of({name.data(), slash}))) return true;
        }
        return false;
    }

    // Only what is known to be harmless is taken over.
    entry_handle cleaned(::archive_entry* entry, const std::string& name,
                         const std::string& leaf) const {
        entry_handle clean(::archive_entry_new());
        ::archive_entry* to = clean.get();
        const std::string called = leaf.empty() ? name : leaf + name.substr(rules_.prefix.size());
        ::archive_entry_set_pathname(to, called.c_str());
        ::archive_entry_set_filetype(to, ::archive_entry_filetype(entry));
        ::archive_entry_set_perm(to, ::archive_entry_perm(entry) & 0777);
        ::archive_entry_set_mtime(to, ::archive_entry_mtime(entry), 0);
        ::archive_entry_set_size(to, 0);
        if (::archive_entry_filetype(entry) == AE_IFLNK) {
            ::archive_entry_set_symlink(to, ::archive_entry_symlink(entry));
        }
        if (::archive_entry_filetype(entry) == AE_IFREG) {
            ::archive_entry_set_size(to, ::archive_entry_size(entry));
            la_int64_t offset = 0;
            la_int64_t length = 0;
            ::archive_entry_sparse_reset(entry);
            while (::archive_entry_sparse_next(entry, &offset, &length) == ARCHIVE_OK)
                ::archive_entry_sparse_add_entry(to, offset, length);
        }
        return clean;
    }

    bool copy_data() {
        bool good = true;
        for (;;) {
            feed_.check_wanted(); // what one part brings may be a thousand times as much
            const void* bytes = nullptr;
            std::size_t size = 0;
            la_int64_t offset = 0;
            const int code = ::archive_read_data_block(archive_.get(), &bytes, &size, &offset);
            if (code == ARCHIVE_EOF) return good;
            check(code);
            if (good && size > 0)
                good = sink_.data(static_cast<std::uint64_t>(offset), bytes, size);
        }
    }

    const archive_rules& rules_;
    sink& sink_;
    const part_feed& feed_;
    archive_input input_;
    archive_read_handle archive_;
    std::unordered_set<std::size_t> links_; // hashes of the names of those that were taken over
    std::unordered_set<std::size_t> directories_;
    archive_taken taken_;
};

// Tells the feed that nothing is read any more, however it ended.
struct reading {
    part_feed& feed;
    explicit reading(part_feed& from) : feed(from) {}
    reading(const reading&) = delete;
    reading& operator=(const reading&) = delete;
    ~reading() { feed.end_reading(); }
};

} // namespace

archive_taken unpack_archive(part_feed& feed, const archive_rules& rules,
                             const std::string& directory, const std::string& leaf) {
    const reading until_the_end(feed);
    // libarchive refuses to go through anything absolute, so this thread gets a working directory
    // of its own; where that is forbidden (as in some containers) names are put behind the
    // directory's real path, which has no link in it.
    const bool alone = ::unshare(CLONE_FS) == 0;
    if (alone && ::chdir(directory.c_str()) != 0) {
        sys::throw_errno("cannot enter " + directory);
    }
    disk_sink into(alone);
    return reader(feed, rules, into).run(alone ? leaf : directory + "/" + leaf);
}

archive_taken copy_archive(part_feed& feed, const archive_rules& rules, int fd) {
    const reading until_the_end(feed);
    tar_sink into(fd, feed);
    return reader(feed, rules, into).run({});
}

} // namespace sandboxd::sync
