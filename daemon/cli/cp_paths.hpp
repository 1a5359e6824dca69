// `cp SRC DST`: which way it goes, and what the two ends are called in full.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace sandboxd::cli {

struct copy {
    bool upload = false;
    std::string host;   // absolute
    std::string remote; // as it was given, after "sandbox:"
};

// Exactly one side begins with "sandbox:". A destination that ends in a slash, or is a directory as
// far as can be known from here (`is_directory`, /workspace), means "into it". `here`: the current
// directory. `real_path`: without links and dots. Throws usage_error.
copy plan_copy(const std::string& source, const std::string& destination,
               const std::filesystem::path& here,
               const std::function<bool(const std::filesystem::path&)>& is_directory,
               const std::function<std::filesystem::path(const std::filesystem::path&)>& real_path);

} // namespace sandboxd::cli
