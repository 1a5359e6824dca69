#include "sync/scan.hpp"

#include "sync/path.hpp"
#include "sync/source_file.hpp"
#include "sys/system_error.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <unordered_map>
#include <utility>

namespace sandboxd::sync {
namespace {

std::string errno_text(int error) {
    return std::generic_category().message(error);
}

// One directory still to be read, or one path still to be looked at.
struct place {
    std::string host;
    std::string remote;
    std::string inside; // relative to the tree's root; empty: the root
};

class walker {
public:
    walker(scanned& into, const std::atomic<bool>& stop) : out_(into), stop_(stop) {}

    void walk(const path_pair& pair) {
        struct stat status {};
        if (::stat(pair.host.c_str(), &status) != 0) {
            const bool gone = errno == ENOENT || errno == ENOTDIR;
            skip({pair.host, pair.remote, {}},
                 gone ? skip_reason::missing : skip_reason::unreadable, errno_text(errno));
            return;
        }
        // Links within a tree are sent as links; the one that was named is what it leads to.
        const std::unique_ptr<char, void (*)(void*)> real(::realpath(pair.host.c_str(), nullptr),
                                                          std::free);
        const place top{real ? real.get() : pair.host, pair.remote, {}};
        if (!S_ISDIR(status.st_mode) && pair.remote == workspace) {
            skip(top, skip_reason::in_the_way, "/workspace is a directory");
            return;
        }
        take(top, status);
        while (!pending_.empty() && !stop_) {
            const place next = std::move(pending_.back());
            pending_.pop_back();
            read_directory(next);
        }
    }

private:
    void skip(const place& at, skip_reason reason, std::string text) {
        out_.skipped.push_back({at.host, at.remote, reason, std::move(text)});
    }

    void read_directory(const place& at) {
        const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(at.host.c_str()), ::closedir);
        if (!directory) {
            skip(at, skip_reason::unreadable, errno_text(errno));
            return;
        }
        for (;;) {
            errno = 0; // what tells the end from a failure
            const dirent* const each = ::readdir(directory.get());
            if (each == nullptr) break;
            const std::string_view name = each->d_name;
            if (name == "." || name == "..") continue;
            place found{at.host + "/", at.remote + "/", at.inside.empty() ? "" : at.inside + "/"};
            found.host += name;
            found.remote += name;
            found.inside += name;
            struct stat status {};
            if (is_below(found.remote, own_directory)) {
                skip(found, skip_reason::special, "the name is the daemon's own");
            } else if (::fstatat(::dirfd(directory.get()), each->d_name, &status,
                                 AT_SYMLINK_NOFOLLOW) == 0) {
                take(found, status);
            } else if (errno != ENOENT) { // gone since: as if it had never been
                skip(found, skip_reason::unreadable, errno_text(errno));
            }
        }
        if (errno != 0) skip(at, skip_reason::unreadable, "not all of it: " + errno_text(errno));
    }

    void take(const place& at, const struct stat& status) {
        local_entry entry{at.host,         at.remote,        file_kind::file,
                          mode_of(status), print_of(status), {}};
        if (S_ISDIR(status.st_mode)) {
            entry.kind = file_kind::directory;
            entry.print = {};
            pending_.push_back(at);
            if (at.remote == workspace) return; // it is there, and its mode is not ours to choose
        } else if (S_ISLNK(status.st_mode)) {
            entry.kind = file_kind::link;
            entry.mode = 0777;
            const bool good = read_link(at, entry);
            if (!good) return;
        } else if (S_ISREG(status.st_mode)) {
            out_.bytes +=
                std::min(entry.print.size, static_cast<std::uint64_t>(status.st_blocks) * 512);
        } else {
            skip(at, skip_reason::special, "it is a socket, a FIFO or a device");
            return;
        }
        out_.entries.push_back(std::move(entry));
    }

    bool read_link(const place& at, local_entry& entry) {
        std::string target(PATH_MAX, '\0');
        const ssize_t size = ::readlink(at.host.c_str(), target.data(), target.size());
        if (size < 0) {
            skip(at, skip_reason::unreadable, errno_text(errno));
            return false;
        }
        target.resize(static_cast<std::size_t>(size));
        const std::size_t slash = at.inside.rfind('/');
        const std::string directory =
            slash == std::string::npos ? std::string() : at.inside.substr(0, slash);
        if (!link_stays_inside(directory, target)) {
            skip(at, skip_reason::link_outside, "the link leads out of what is pushed");
            return false;
        }
        entry.link = std::move(target);
        entry.read_at = begun_;
        return true;
    }

    scanned& out_;
    const std::atomic<bool>& stop_;
    const std::int64_t begun_ = wall_clock();
    std::vector<place> pending_;
};

} // namespace

namespace {

// Of what is to be below a file or a link of the same push, the file or the link stands.
void leave_out_what_has_no_place(scanned& all) {
    std::unordered_map<std::string_view, bool> taken; // paths, and whether they are no directories
    for (const local_entry& each : all.entries)
        taken.emplace(each.remote, each.kind != file_kind::directory);
    std::vector<std::string_view> asked;
    const auto is_below_a_file = [&](std::string_view path) {
        asked.clear();
        bool found = false;
        while (path != workspace) {
            path = parent_of(path);
            const auto known = taken.find(path);
            if (known != taken.end()) {
                found = known->second;
                break;
            }
            asked.push_back(path);
        }
        for (const std::string_view parent : asked)
            taken.emplace(parent, found);
        return found;
    };
    std::vector<bool> left_out(all.entries.size());
    for (std::size_t i = 0; i < all.entries.size(); ++i) {
        const local_entry& each = all.entries[i];
        left_out[i] = is_below_a_file(each.remote);
        // Parents come first, so that what is below a directory without a place has none either.
        if (left_out[i]) taken[each.remote] = true;
    }
    std::vector<local_entry> kept;
    kept.reserve(all.entries.size());
    for (std::size_t i = 0; i < all.entries.size(); ++i) {
        local_entry& each = all.entries[i];
        if (left_out[i]) {
            all.skipped.push_back({each.host, each.remote, skip_reason::in_the_way,
                                   "what it would be in is a file or a link of the same push"});
        } else {
            kept.push_back(std::move(each));
        }
    }
    all.entries = std::move(kept);
}

struct found_by {
    std::size_t entries = 0;
    std::size_t skipped = 0;
};

// What one pair had nothing for, and a later one has.
void forget_what_came_later(scanned& all, const std::vector<found_by>& ends) {
    if (all.skipped.empty()) return;
    std::unordered_map<std::string_view, std::size_t> last; // pair, by path
    for (std::size_t pair = 0, i = 0; pair < ends.size(); ++pair) {
        for (; i < ends[pair].entries; ++i)
            last.insert_or_assign(all.entries[i].remote, pair);
    }
    std::vector<skipped_path> kept;
    for (std::size_t pair = 0, i = 0; pair < ends.size(); ++pair) {
        for (; i < ends[pair].skipped; ++i) {
            const auto found = last.find(all.skipped[i].remote);
            if (found == last.end() || found->second <= pair) {
                kept.push_back(std::move(all.skipped[i]));
            }
        }
    }
    all.skipped = std::move(kept);
}

} // namespace

std::string_view to_string(skip_reason reason) noexcept {
    switch (reason) {
    case skip_reason::missing:
        return "missing";
    case skip_reason::unreadable:
        return "unreadable";
    case skip_reason::special:
        return "special";
    case skip_reason::link_outside:
        return "link_outside";
    case skip_reason::changing:
        return "changing";
    case skip_reason::in_the_way:
        return "in_the_way";
    case skip_reason::refused:
        return "refused";
    case skip_reason::failed:
        return "failed";
    }
    return "failed";
}

scanned scan(const std::vector<path_pair>& pairs, const std::atomic<bool>& stop) {
    scanned out;
    walker walk(out, stop);
    std::vector<found_by> ends; // of what each pair has led to
    for (const path_pair& pair : pairs) {
        if (stop) break;
        walk.walk(pair);
        ends.push_back({out.entries.size(), out.skipped.size()});
    }
    forget_what_came_later(out, ends);
    // Of two for one place the later counts, as it would if they were pushed one after the other.
    std::stable_sort(out.entries.begin(), out.entries.end(),
                     [](const auto& a, const auto& b) { return a.remote < b.remote; });
    std::vector<local_entry> each_once;
    each_once.reserve(out.entries.size());
    for (local_entry& entry : out.entries) {
        if (!each_once.empty() && each_once.back().remote == entry.remote) each_once.pop_back();
        each_once.push_back(std::move(entry));
    }
    out.entries = std::move(each_once);
    leave_out_what_has_no_place(out);
    return out;
}

} // namespace sandboxd::sync
