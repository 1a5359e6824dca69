// The tar that a sandbox made, taken apart on the host: nothing in it is trusted.
//
// Blocking, on a thread of its own (unpack_archive changes that thread's working directory); the
// parts come through a part_feed while they are being fetched. What is taken over: regular files,
// directories, and links that stay inside with nothing below them, all called as was asked for, by
// names that are not too long, with plain permission bits, and no more members and bytes than were
// announced. Everything else is left out and named.
#pragma once

#include "sync/part_feed.hpp"
#include "sync/scan.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace sandboxd::sync {

struct archive_rules {
    std::string prefix;            // what was asked for, as in "workspace/a"
    std::set<std::size_t> drop;    // members that are torn
    std::uint64_t members = 0;     // as announced, the torn ones included
    std::uint64_t max_bytes = 0;   // of content, holes included
    std::size_t longest_below = 0; // bytes of a member's name after the prefix
};

struct archive_taken {
    std::uint64_t files = 0; // and links
    std::uint64_t bytes = 0;
    std::vector<skipped_path> skipped;
    std::uint64_t skipped_more = 0; // beyond those
};

// Both throw std::system_error for the host's own troubles, and rpc_error sync_failed for an
// archive that is broken or other than announced.
//
// Into a directory (its real path), which is empty and nobody else's: the member called `prefix`
// becomes its entry `leaf`.
archive_taken unpack_archive(part_feed& feed, const archive_rules& rules,
                             const std::string& directory, const std::string& leaf);
// Into one clean tar, whose members keep their names.
archive_taken copy_archive(part_feed& feed, const archive_rules& rules, int fd);

} // namespace sandboxd::sync
