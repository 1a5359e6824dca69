// Files that could not be read are kept for people to look at, never overwritten and never silently
// dropped.
#pragma once

#include <filesystem>
#include <string_view>

namespace sandboxd::store {

// `file` with `suffix` behind it, or `suffix`.2 and so on: the first name that is free.
std::filesystem::path aside_name(const std::filesystem::path& file, std::string_view suffix);

// Renames `file` to its aside_name with ".bad"; returns that. Throws
// std::filesystem::filesystem_error.
std::filesystem::path keep_aside(const std::filesystem::path& file);

} // namespace sandboxd::store
