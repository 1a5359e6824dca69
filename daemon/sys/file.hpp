// Files that must be whole or absent: read at once, replaced atomically; and directories that
// nobody else may enter.
//
// Every function throws std::system_error whose text names the path.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::sys {

// The whole file, or nothing if there is none. Throws when it is not a regular file or longer than
// `limit` bytes (std::errc::file_too_large), so that a file swapped for a device or a huge one
// cannot take the daemon down.
std::optional<std::string> read_file(const std::filesystem::path& file,
                                     std::size_t limit = 64u << 20);

// What is left to read of `fd`, `limit` bytes at the most; `name` is for error texts.
std::string read_all(int fd, const std::string& name, std::size_t limit);

// Replaces `file` by one that holds `bytes` with exactly `mode`: after a crash at any point there
// is either the old content or the new. File and directory have reached the disk on return. The new
// content is first written to `<file>.tmp`, so there must be one writer a file at a time (the state
// directory's lock sees to that).
void atomic_write(const std::filesystem::path& file, std::string_view bytes, mode_t mode = 0600);

// Sees to it that `directory` exists, is ours and has no permission for group and others. It and
// missing parents are made with mode 0700; one that exists with more permissions is refused rather
// than changed, because whoever named it may not have meant it to become private. The error text
// says how to put it right.
void ensure_private_directory(const std::filesystem::path& directory);

} // namespace sandboxd::sys
