// Removing a directory that an untrusted archive was unpacked into: of any depth, and of any number
// of entries.
//
// Blocking. Owns nothing. Goes by descriptors, as a tree may be deeper than any path is long;
// follows no link.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>

namespace sandboxd::sync {

using deadline = std::atomic<std::chrono::steady_clock::time_point>;

// Whether nothing of it is there any more. Directories that forbid it are no obstacle as long as
// they are this user's. It may be used for nothing else meanwhile. Given up at `until`, which may
// be set while this runs.
bool remove_tree(const std::filesystem::path& path, const deadline& until);

} // namespace sandboxd::sync
