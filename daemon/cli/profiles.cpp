#include "cli/profiles.hpp"

#include "base/fingerprint.hpp"

#include <boost/json/array.hpp>

#include <system_error>

namespace sandboxd::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t hash_length = 6;

bool is_path(std::string_view profile) {
    return profile.starts_with('/');
}

void name_profiles(json::value& within, const fs::path& home) {
    if (within.is_array()) {
        for (json::value& each : within.get_array())
            name_profiles(each, home);
    } else if (within.is_object()) {
        for (auto& [name, value] : within.get_object()) {
            if (name == "profile" && value.is_string()) {
                value = profile_name(value.get_string(), home);
            } else {
                name_profiles(value, home);
            }
        }
    }
}

// Without a slash at the end: as Python's realpath, which the plugin uses.
fs::path real_path(const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(path, error);
    const fs::path plain = error ? path.lexically_normal() : real;
    return plain.has_filename() ? plain : plain.parent_path();
}

fs::path native_root(const fs::path& home) {
    return real_path(home / ".hermes");
}

// The one that people call so, or the name as it is.
std::string profile_called(const context& here, const std::string& name, std::string_view verb) {
    connection daemon = here.connect();
    std::vector<std::string> known;
    const json::object listed = daemon.call("sandbox.list", {});
    for (const json::value& each : array_of(listed, "sandboxes")) {
        if (!each.is_object()) continue;
        known.emplace_back(text_of(object_of(each.get_object(), "key"), "profile"));
    }
    const std::set<std::string> called_so = profiles_called(name, known, here.env.home);
    if (called_so.size() > 1) {
        std::string all;
        for (const std::string& each : called_so) {
            if (is_path(each)) all += " " + each;
        }
        throw usage_error("several profiles are called " + name +
                              ", give a path, or a sandbox's id:" + all,
                          std::string(verb));
    }
    return called_so.empty() ? name : *called_so.begin();
}

} // namespace

std::string profile_name(std::string_view profile, const fs::path& home) {
    if (!is_path(profile)) return std::string(profile);
    const fs::path path(profile);
    const bool named = path.parent_path().filename() == "profiles";
    const fs::path root = named ? path.parent_path().parent_path() : path;
    const std::string name = named ? path.filename().string() : "default";
    if (root == native_root(home)) return name;
    return name + "~" + sha256_hex(root.string()).substr(0, hash_length);
}

std::optional<std::string> profile_at(std::string_view given, const fs::path& home) {
    fs::path path(given);
    if (given.starts_with("~/")) {
        path = home / given.substr(2);
    } else if (given.starts_with("./") || given.starts_with("../") || given.ends_with('/') ||
               given == "." || given == "..") {
        path = fs::absolute(path);
    } else if (!is_path(given)) {
        return std::nullopt;
    }
    const fs::path real = real_path(path);
    return real == native_root(home) ? "default" : real.string();
}

std::set<std::string> profiles_called(const std::string& name,
                                      const std::vector<std::string>& known, const fs::path& home) {
    std::set<std::string> found;
    for (const std::string& profile : known) {
        if (profile == name || profile_name(profile, home) == name) found.insert(profile);
    }
    std::error_code error;
    const fs::path native = native_root(home) / "profiles" / name;
    if (!name.empty() && name.find('/') == std::string::npos && fs::is_directory(native, error)) {
        found.insert(real_path(native).string());
    }
    return found;
}

json::object with_profile_names(json::object answer, const fs::path& home) {
    json::value all(std::move(answer));
    name_profiles(all, home);
    return std::move(all.get_object());
}

json::object key_of(const arguments& given) {
    return {{"profile", given.value("profile").value_or("default")},
            {"task", given.value("task").value_or("default")}};
}

std::string real_profile(const context& here, const std::string& given, std::string_view verb) {
    if (const auto at = profile_at(given, here.env.home)) return *at;
    return given == "default" ? given : profile_called(here, given, verb);
}

json::object with_real_profile(const context& here, json::object request, std::string_view verb) {
    json::value* const key = request.if_contains("key");
    if (key == nullptr) return request;
    json::value& profile = key->as_object().at("profile");
    profile = real_profile(here, std::string(profile.as_string()), verb);
    return request;
}

} // namespace sandboxd::cli
