#include "sync/host_stage.hpp"

#include "sync/spool.hpp"
#include "sys/file.hpp"
#include "sys/system_error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace sandboxd::sync {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view stage_prefix = ".deepinfra-sandboxd-";
constexpr std::size_t longest_note = 8192;

class mover {
public:
    std::vector<not_moved> troubles;

    void move(const fs::path& from, const fs::path& to, const std::string& shown) {
        struct stat source {};
        if (::lstat(from.c_str(), &source) != 0) {
            leave(from, shown, std::generic_category().message(errno));
            return;
        }
        const bool directory = S_ISDIR(source.st_mode);
        struct stat target {};
        const bool there = ::lstat(to.c_str(), &target) == 0;
        if (there && is_special(to, target)) {
            leave(from, shown, "there is a socket, a FIFO or a device of that name");
            return;
        }
        const bool both = there && directory && S_ISDIR(target.st_mode);
        const mode_t mode = both ? target.st_mode & 07777 : source.st_mode & 0777;
        // Whoever is not root may not even move one that forbids writing.
        if (directory) ::chmod(from.c_str(), mode | S_IRWXU);
        if (::rename(from.c_str(), to.c_str()) == 0) {
            if (directory) close(to, mode);
            return;
        }
        const int error = errno;
        if (both) {
            open_up(to, mode);
            merge(from, to, shown);
            close(to, mode);
        } else if (there && S_ISDIR(target.st_mode)) {
            leave(from, shown, "there is a directory of that name");
        } else if (there && directory) {
            leave(from, shown, "there is something of that name that is no directory");
        } else if (error == EXDEV) {
            leave(from, shown,
                  "another file system is mounted there: fetch it by itself into that");
        } else {
            leave(from, shown, std::generic_category().message(error));
        }
    }

private:
    // Somebody reads from it or writes to it: it is no older state of what comes.
    // Nor is a link to such a thing, as /dev/stdout.
    static bool is_special(const fs::path& path, const struct stat& status) {
        struct stat behind {};
        const bool leads = S_ISLNK(status.st_mode) && ::stat(path.c_str(), &behind) == 0;
        const mode_t mode = leads ? behind.st_mode : status.st_mode;
        return !S_ISREG(mode) && !S_ISDIR(mode) && !S_ISLNK(mode);
    }

    // Modes that cannot be set show in what cannot be moved then.
    static void open_up(const fs::path& directory, mode_t mode) {
        if ((mode & S_IRWXU) != S_IRWXU) ::chmod(directory.c_str(), (mode & 07777) | S_IRWXU);
    }
    static void close(const fs::path& directory, mode_t mode) { ::chmod(directory.c_str(), mode); }

    // As far as it can be read.
    static std::vector<fs::path> names_in(const fs::path& directory, std::error_code& error) {
        std::vector<fs::path> names;
        fs::directory_iterator each(directory, error);
        for (; !error && each != fs::directory_iterator(); each.increment(error))
            names.push_back(each->path().filename());
        return names;
    }

    void merge(const fs::path& from, const fs::path& to, const std::string& shown) {
        std::error_code error;
        for (const fs::path& name : names_in(from, error))
            move(from / name, to / name,
                 shown.empty() ? name.string() : shown + "/" + name.string());
        if (error) leave(from, shown.empty() ? "." : shown, "not all of it: " + error.message());
    }

    void leave(const fs::path& from, const std::string& shown, std::string why) {
        not_moved left{shown, std::move(why)};
        count(from, left);
        troubles.push_back(std::move(left));
    }
    static void count(const fs::path& at, not_moved& into) {
        struct stat status {};
        if (::lstat(at.c_str(), &status) != 0) return;
        if (!S_ISDIR(status.st_mode)) {
            ++into.files;
            if (S_ISREG(status.st_mode)) into.bytes += static_cast<std::uint64_t>(status.st_size);
            return;
        }
        open_up(at, status.st_mode); // it is in the stage, and goes with it
        std::error_code error;
        for (const fs::path& name : names_in(at, error))
            count(at / name, into);
    }
};

} // namespace

host_stage::host_stage(const fs::path& parent, fs::path notes, const std::string& operation,
                       const deadline& until)
    : note_(std::move(notes)), until_(until) {
    path_ = fs::canonical(parent) / (std::string(stage_prefix) + operation);
    if (::mkdir(note_.c_str(), 0700) != 0 && errno != EEXIST) {
        sys::throw_errno("cannot make directory " + note_.string());
    }
    note_ /= operation;
    replace_file(note_, path_.string());
    if (::mkdir(path_.c_str(), 0700) != 0) {
        const int error = errno;
        ::unlink(note_.c_str());
        sys::throw_errno("cannot write in " + parent.string(), error);
    }
}

host_stage::~host_stage() {
    if (!tried_) remove();
}

bool host_stage::remove() {
    tried_ = true;
    const bool gone = remove_tree(path_, until_);
    if (gone) ::unlink(note_.c_str());
    return gone;
}

fs::path stage_parent(const fs::path& target) {
    struct statx status {};
    const bool mounted =
        ::statx(AT_FDCWD, target.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE, &status) == 0 &&
        S_ISDIR(status.stx_mode) && (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    return mounted ? target : target.parent_path();
}

std::vector<fs::path> stage_notes(const fs::path& notes) {
    std::vector<fs::path> found;
    std::error_code error;
    for (const fs::directory_entry& each : fs::directory_iterator(notes, error))
        found.push_back(each.path());
    return found;
}

void sweep_stages(const std::vector<fs::path>& notes, const deadline& until) {
    for (const fs::path& note : notes) {
        bool gone = true;
        try {
            if (const auto path = sys::read_file(note, longest_note)) {
                const fs::path stage(*path);
                if (stage.is_absolute() && stage.filename().string().starts_with(stage_prefix)) {
                    gone = remove_tree(stage, until);
                }
            }
        } catch (const std::system_error&) {
            // Not a note of ours, then: it goes, and nothing else does.
        }
        if (gone) ::unlink(note.c_str());
    }
}

std::vector<not_moved> move_into_place(const fs::path& from, const fs::path& to) {
    mover move;
    move.move(from, to, {});
    return std::move(move.troubles);
}

} // namespace sandboxd::sync
