// The tar that a sandbox made, taken apart on the host: nothing in it is trusted.
//
// Blocking, on a thread of its own (read_archive changes that thread's working directory); the
// parts come through a part_feed while they are being fetched. What is taken over: regular files,
// directories, and links that stay inside, all called as was asked for, with plain permission bits,
// and no more bytes than were announced. Everything else is left out and named.
#pragma once

#include "sync/scan.hpp"
#include "sys/fd.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sandboxd::sync {

// Parts on their way from the daemon's thread to the one that reads them. At most two wait.
class part_feed {
public:
    void push(sys::unique_fd part); // any thread; does not wait
    void finish();                  // no more will come
    void abandon();                 // ... and what came is not wanted: the reader fails
    bool wants_more() const;        // fewer than two wait, and the reader has not ended
    // Called on the reading thread whenever wants_more() may have changed.
    std::function<void()> on_taken;

    // For the reading thread: waits; nothing at the end. Throws std::system_error (ECANCELED).
    sys::unique_fd take();
    void end_reading();

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<sys::unique_fd> waiting_;
    bool finished_ = false;
    bool abandoned_ = false;
    bool ended_ = false;
};

struct archive_rules {
    std::string prefix;          // what was asked for, as in "workspace/a"
    std::set<std::size_t> drop;  // members that are torn
    std::uint64_t max_bytes = 0; // of content, holes included
};

struct archive_taken {
    std::uint64_t files = 0; // and links
    std::uint64_t bytes = 0;
    std::vector<skipped_path> skipped;
};

// Both throw std::system_error for the host's own troubles, and rpc_error sync_failed for an
// archive that is broken or larger than announced.
//
// Into a directory (its real path), which is empty and nobody else's: the member called `prefix`
// becomes its entry `leaf`.
archive_taken unpack_archive(part_feed& feed, const archive_rules& rules,
                             const std::string& directory, const std::string& leaf);
// Into one clean tar, whose members keep their names.
archive_taken copy_archive(part_feed& feed, const archive_rules& rules, int fd);

} // namespace sandboxd::sync
