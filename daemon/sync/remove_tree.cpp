#include "sync/remove_tree.hpp"

#include "sys/fd.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace sandboxd::sync {
namespace {

// Each level holds a descriptor; what is deeper is moved up to the top first.
constexpr int most_levels = 32;

struct directory_closer {
    void operator()(DIR* what) const { ::closedir(what); }
};
using directory_handle = std::unique_ptr<DIR, directory_closer>;

sys::unique_fd open_directory(int at, const char* name) {
    constexpr int how = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    sys::unique_fd fd(::openat(at, name, how));
    if (!fd && errno == EACCES && ::fchmodat(at, name, S_IRWXU, 0) == 0) {
        fd.reset(::openat(at, name, how));
    }
    return fd;
}

class remover {
public:
    remover(int top, const deadline& until) : top_(top), until_(until) {}

    void run() {
        do {
            moved_ = false;
            sys::unique_fd again(::openat(top_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
            if (again) empty(std::move(again), 0);
        } while (moved_);
    }

private:
    void empty(sys::unique_fd directory, int level) {
        const int at = directory.get();
        struct stat status {};
        if (::fstat(at, &status) == 0 && (status.st_mode & S_IRWXU) != S_IRWXU) {
            ::fchmod(at, S_IRWXU);
        }
        const directory_handle entries(::fdopendir(at));
        if (!entries) return;
        static_cast<void>(directory.release()); // the stream's now
        while (const dirent* entry = ::readdir(entries.get())) {
            if (std::chrono::steady_clock::now() >= until_.load()) return;
            const std::string_view name(entry->d_name);
            if (name != "." && name != "..") remove(at, entry->d_name, level);
        }
    }

    void remove(int at, const char* name, int level) {
        if (::unlinkat(at, name, 0) == 0 || errno == ENOENT) return;
        if (errno != EISDIR && errno != EPERM) return; // POSIX has EPERM for a directory
        if (::unlinkat(at, name, AT_REMOVEDIR) == 0) return;
        sys::unique_fd directory = open_directory(at, name);
        if (!directory) return;
        if (level == most_levels) {
            move_up(at, name, directory.get());
            return;
        }
        empty(std::move(directory), level + 1);
        ::unlinkat(at, name, AT_REMOVEDIR);
    }

    void move_up(int at, const char* name, int directory) {
        ::fchmod(directory, S_IRWXU); // as its ".." changes
        // A removal that was given up may have left such names.
        do {
            const std::string above = "removing-" + std::to_string(++names_);
            if (::renameat(at, name, top_, above.c_str()) == 0) {
                moved_ = true;
                return;
            }
        } while (errno == ENOTEMPTY || errno == EEXIST);
    }

    const int top_;
    const deadline& until_;
    bool moved_ = false;
    std::uint64_t names_ = 0;
};

} // namespace

bool remove_tree(const std::filesystem::path& path, const deadline& until) {
    const sys::unique_fd top = open_directory(AT_FDCWD, path.c_str());
    if (top) {
        remover(top.get(), until).run();
    } else if (errno == ENOTDIR || errno == ELOOP) {
        ::unlink(path.c_str());
    }
    ::rmdir(path.c_str());
    struct stat status {};
    return ::lstat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

} // namespace sandboxd::sync
