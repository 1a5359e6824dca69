#include "sync/path.hpp"

#include <algorithm>
#include <cstddef>

namespace sandboxd::sync {
namespace {

// Takes the first component off `rest`; the empty ones between double slashes too.
std::string_view next_component(std::string_view& rest) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view component = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return component;
}

std::ptrdiff_t depth_of(std::string_view directory) {
    std::ptrdiff_t depth = 0;
    while (!directory.empty()) {
        const std::string_view component = next_component(directory);
        if (!component.empty() && component != ".") ++depth;
    }
    return depth;
}

bool stays_inside(std::string_view directory, std::string_view target, bool only_leading) {
    if (target.empty() || target.front() == '/') return false;
    std::ptrdiff_t depth = depth_of(directory);
    bool named = false;
    while (!target.empty()) {
        const std::string_view component = next_component(target);
        if (component.empty() || component == ".") continue;
        if (component != "..") {
            named = true;
            ++depth;
            continue;
        }
        if ((named && only_leading) || --depth < 0) return false;
    }
    return true;
}

} // namespace

std::optional<std::string> workspace_path(std::string_view given) {
    if (given.empty() || given.find('\0') != std::string_view::npos) return std::nullopt;
    std::string path(given.front() == '/' ? "" : workspace);
    while (!given.empty()) {
        const std::string_view component = next_component(given);
        if (component == "..") return std::nullopt;
        if (component.empty() || component == ".") continue;
        path += '/';
        path += component;
    }
    if (!is_below(path, workspace) || is_below(path, own_directory)) return std::nullopt;
    return path;
}

bool is_below(std::string_view path, std::string_view root) {
    return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

std::string_view parent_of(std::string_view path) {
    return path.substr(0, path.rfind('/'));
}

bool link_stays_inside(std::string_view directory, std::string_view target) {
    return stays_inside(directory, target, false);
}

bool foreign_link_stays_inside(std::string_view directory, std::string_view target) {
    return stays_inside(directory, target, true);
}

bool member_is_inside(std::string_view name, std::string_view prefix) {
    if (!is_below(name, prefix) || name.find('\0') != std::string_view::npos) return false;
    while (!name.empty()) {
        const bool last = name.find('/') == std::string_view::npos;
        const std::string_view component = next_component(name);
        if (component.empty() || component == "." || component == "..") return false;
        if (!last && name.empty()) return false; // it ended in a slash
    }
    return true;
}

} // namespace sandboxd::sync
