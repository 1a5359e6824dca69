#include "sync/manifest_store.hpp"

#include "base/fingerprint.hpp"
#include "sync/spool.hpp"
#include "sys/file.hpp"
#include "sys/system_error.hpp"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <system_error>

namespace sandboxd::sync {
namespace fs = std::filesystem;

fs::path manifest_store::file_of(const std::string& sandbox) const {
    return directory_ / sha256_hex(sandbox).substr(0, 32);
}

fs::path manifest_store::doubt_of(const std::string& sandbox) const {
    return file_of(sandbox).string() + ".doubt";
}

manifest manifest_store::load(const std::string& sandbox) const {
    manifest none;
    none.sandbox = sandbox;
    try {
        const std::optional<std::string> text = sys::read_file(file_of(sandbox), 1U << 30);
        if (!text) return none;
        std::optional<manifest> read = parse_manifest(*text);
        if (read && read->sandbox == sandbox) return std::move(*read);
        spdlog::warn("{} is not the manifest of {}: everything is sent again",
                     file_of(sandbox).string(), sandbox);
    } catch (const std::system_error& problem) {
        spdlog::warn("{}: everything is sent again", problem.what());
    }
    return none;
}

void manifest_store::save(const manifest& what) const {
    if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
        sys::throw_errno("cannot make directory " + directory_.string());
    }
    replace_file(file_of(what.sandbox), format_manifest(what));
}

void manifest_store::keep_only(const std::set<std::string>& sandboxes) const {
    std::set<fs::path> wanted;
    for (const std::string& each : sandboxes)
        wanted.insert(file_of(each));
    std::error_code error;
    for (const fs::directory_entry& each : fs::directory_iterator(directory_, error)) {
        // What belongs to a manifest, or will be one in a moment, has its name and an ending.
        const fs::path whose = each.path().parent_path() / each.path().stem();
        std::error_code ignored;
        if (!wanted.contains(whose)) fs::remove(each.path(), ignored);
    }
}

bool manifest_store::doubted(const std::string& sandbox) const {
    std::error_code error;
    return fs::exists(doubt_of(sandbox), error);
}

void manifest_store::set_doubted(const std::string& sandbox, bool doubted) const {
    try {
        if (doubted) {
            replace_file(doubt_of(sandbox), {});
        } else {
            fs::remove(doubt_of(sandbox));
        }
    } catch (const std::system_error& problem) {
        spdlog::warn("{}", problem.what());
    }
}

} // namespace sandboxd::sync
