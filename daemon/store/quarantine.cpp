#include "store/quarantine.hpp"

#include <string>

namespace sandboxd::store {

std::filesystem::path aside_name(const std::filesystem::path& file, std::string_view suffix) {
    std::filesystem::path kept = file;
    kept += suffix;
    for (int n = 2; std::filesystem::exists(kept); ++n) {
        kept = file;
        kept += std::string(suffix) + "." + std::to_string(n);
    }
    return kept;
}

std::filesystem::path keep_aside(const std::filesystem::path& file) {
    const std::filesystem::path kept = aside_name(file, ".bad");
    std::filesystem::rename(file, kept);
    return kept;
}

} // namespace sandboxd::store
