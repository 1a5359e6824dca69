#include "cli/cp_paths.hpp"

#include "cli/failure.hpp"

#include <optional>
#include <string_view>

namespace sandboxd::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view scheme = "sandbox:";

std::optional<std::string> remote_of(const std::string& given) {
    if (!given.starts_with(scheme)) return std::nullopt;
    return given.substr(scheme.size());
}

// Behind a link ".." is not what the text says, so it stays.
fs::path full(const std::string& given, const fs::path& here) {
    if (given.empty()) throw usage_error("a path is empty", "cp");
    fs::path path;
    for (const fs::path& each : here / given) {
        if (!each.empty() && each != ".") path /= each;
    }
    return path;
}

std::string last_name(std::string path) {
    while (path.size() > 1 && path.ends_with('/'))
        path.pop_back();
    return path.substr(path.rfind('/') + 1); // npos + 1 is 0
}

} // namespace

copy plan_copy(const std::string& source, const std::string& destination, const fs::path& here,
               const std::function<bool(const fs::path&)>& is_directory,
               const std::function<fs::path(const fs::path&)>& real_path) {
    const std::optional<std::string> from = remote_of(source);
    const std::optional<std::string> to = remote_of(destination);
    if (from.has_value() == to.has_value()) {
        throw usage_error("exactly one of SRC and DST is in the sandbox: sandbox:/workspace/...",
                          "cp");
    }
    if (to) {
        fs::path file = full(source, here);
        if (file.filename() == "..") file = real_path(file); // that has a name
        copy upload{true, file.string(), *to};
        const std::string name = last_name(upload.host);
        const std::string last = last_name(*to);
        const bool into = last.empty() || to->ends_with('/') || last == "." || last == ".." ||
                          *to == "/workspace";
        if (into && !name.empty()) {
            if (upload.remote == "." || upload.remote.ends_with("/.")) upload.remote.pop_back();
            if (!upload.remote.empty() && !upload.remote.ends_with('/')) upload.remote += '/';
            upload.remote += name;
        }
        return upload;
    }
    const fs::path target = full(destination, here);
    copy download{false, target.string(), *from};
    if (destination.ends_with('/') || is_directory(target)) {
        const std::string name = last_name(*from);
        if (name.empty() || name == "." || name == "..") {
            throw usage_error("name the copy: \"" + source + "\" has no name of its own", "cp");
        }
        download.host = (target / name).string();
    }
    return download;
}

} // namespace sandboxd::cli
