// Where bytes wait on disk for their turn: a file that has no name, so that nothing is left of it
// whatever happens.
#pragma once

#include "sys/fd.hpp"

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace sandboxd::sync {

// Open for reading and writing; its file is gone when the descriptor is. Throws std::system_error,
// also where there is no room for `size` bytes, as far as the file system can tell beforehand.
sys::unique_fd open_spool(const std::filesystem::path& directory, std::uint64_t size = 0);

// All of `bytes` at the end of what `fd` has; throws std::system_error.
void append(int fd, std::string_view bytes);

// Replaces `file` (mode 0600) whole or not at all, as far as a crash of this program goes. Nothing
// is forced to disk: for what may as well be lost with the machine, where a sync would wait for all
// else that is being written. There must be one writer a file at a time.
void replace_file(const std::filesystem::path& file, std::string_view bytes);

} // namespace sandboxd::sync
