// Which paths may be transferred: in the sandbox, in links, and in archives that come from there.
//
// Pure. Paths are bytes. Nothing here looks at a file system: what a name leads to inside the
// sandbox is checked there again, by helper.py.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::sync {

inline constexpr std::string_view workspace = "/workspace";
// The daemon's own directory there.
inline constexpr std::string_view own_directory = "/workspace/.deepinfra-sandboxd";

// `given` (absolute, or relative to /workspace) without double slashes and dots; nothing if it is
// not /workspace or below it, has "..", or is the daemon's own.
std::optional<std::string> workspace_path(std::string_view given);

bool is_below(std::string_view path, std::string_view root); // or `root` itself

// The directory that a path below /workspace is in.
std::string_view parent_of(std::string_view path);

// Whether a link stays in the tree that it is found in. `directory`: where it is, relative to the
// tree's root; empty: in the root itself.
bool link_stays_inside(std::string_view directory, std::string_view target);
// The same for links that an untrusted archive brings. ".." is good only at the beginning, where
// the directories are known to be none of its links.
bool foreign_link_stays_inside(std::string_view directory, std::string_view target);

// Whether an untrusted member may be called so: `prefix` or something below it, spelt without any
// detour. Both are relative, as in "workspace/a".
bool member_is_inside(std::string_view name, std::string_view prefix);

} // namespace sandboxd::sync
