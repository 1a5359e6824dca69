// What a request to push means on the host: every file, directory and link of it, and what is left
// out.
//
// Blocking. A path that cannot be used is named in `skipped`, never an exception.
#pragma once

#include "sync/manifest.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sync {

// Why a path was left out; the names are the protocol's.
enum class skip_reason {
    missing,
    unreadable,
    special,
    link_outside,
    changing,
    in_the_way,
    refused,
    failed
};
std::string_view to_string(skip_reason reason) noexcept;

struct skipped_path {
    std::string host; // empty where only the sandbox's matters
    std::string remote;
    skip_reason reason = skip_reason::failed;
    std::string text;
};

struct path_pair {
    std::string host;   // absolute; a link is followed
    std::string remote; // as workspace_path() gives it
};

struct scanned {
    std::vector<local_entry> entries; // by path in the sandbox, each once: parents come first
    std::vector<skipped_path> skipped;
    std::uint64_t bytes = 0; // of all files' content, as far as it is stored
};

// Ends early, with what it has, once `stop` is set.
scanned scan(const std::vector<path_pair>& pairs, const std::atomic<bool>& stop);

} // namespace sandboxd::sync
