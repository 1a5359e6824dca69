// What was pushed into one sandbox: path by path what was sent, and what the host's file looked
// like then.
//
// Pure. A manifest only ever errs by sending again: what is not in it, or not the same, or
// unsettled, is sent. So an entry is unsettled before the sandbox's file is touched, and settled
// when the sandbox has said that the file is in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sync {

enum class file_kind : char { file = 'f', directory = 'd', link = 'l' };

// How a file of the host looked. Times are nanoseconds since 1970.
struct file_print {
    std::uint64_t size = 0;
    std::int64_t mtime = 0;
    std::int64_t ctime = 0;
    std::uint64_t inode = 0;
    friend bool operator==(const file_print&, const file_print&) = default;
};

struct manifest_entry {
    file_kind kind = file_kind::file;
    unsigned mode = 0; // permission bits
    file_print print;
    // A change in the same tick of the clock would not show in the print: only the digest counts.
    bool doubtful = false;
    std::string
        digest; // of the content sent, hexadecimal; of a link: its target's; of a directory: empty
    // It was about to be replaced or deleted when last heard of. Whatever it is now, we put it
    // there.
    bool unsettled = false;
    friend bool operator==(const manifest_entry&, const manifest_entry&) = default;
};

// Something of the host that is to be in the sandbox.
struct local_entry {
    std::string host;   // absolute
    std::string remote; // as workspace_path() gives it
    file_kind kind = file_kind::file;
    unsigned mode = 0;
    file_print print;
    std::string link;         // the target of a link
    std::int64_t read_at = 0; // of a link: when its target was looked at, or a little before
};

// Whether it has to be sent. `look`: the content decides, which has to be read for that.
enum class verdict { unchanged, look, changed };
verdict compare(const manifest_entry* known, const local_entry& now);

// Whether a file changed so recently, seen at `read_at` (ns), that a second change might leave the
// same print. File systems whose times are whole seconds are known by that.
bool is_doubtful(const file_print& print, std::int64_t read_at);

struct manifest {
    std::string sandbox;                           // whose it is; another one's counts as none
    std::map<std::string, manifest_entry> entries; // by path in the sandbox

    const manifest_entry* find(const std::string& path) const;
    void forget(const std::string& path); // and all below it
    void forget_below(const std::string& path);
    bool unsettle(const std::string& path); // and all below it; whether anything is known there
    // The digests of the files below it that are settled, by their paths.
    std::map<std::string, std::string> contents_below(const std::string& path) const;
};

std::string format_manifest(const manifest& what);
// Nothing if the text is not a whole manifest.
std::optional<manifest> parse_manifest(std::string_view text);

} // namespace sandboxd::sync
