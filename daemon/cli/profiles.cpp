#include "cli/profiles.hpp"

#include "base/fingerprint.hpp"

#include <boost/json/array.hpp>

#include <set>
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

// Of those that the daemon knows, the one that people call so; else it is taken as it is.
std::string profile_called(const context& here, const std::string& name, std::string_view verb) {
    connection daemon = here.connect();
    std::set<std::string> called_so;
    const json::object known = daemon.call("sandbox.list", {});
    for (const json::value& each : array_of(known, "sandboxes")) {
        if (!each.is_object()) continue;
        const std::string profile(text_of(object_of(each.get_object(), "key"), "profile"));
        if (profile == name) return name;
        if (profile_name(profile, here.env.home) == name) called_so.insert(profile);
    }
    if (called_so.size() > 1) {
        std::string all;
        for (const std::string& each : called_so)
            all += " " + each;
        throw usage_error("several profiles are called " + name + ", give one of" + all,
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
    std::error_code error;
    if (root == fs::weakly_canonical(home / ".hermes", error)) return name;
    return name + "~" + sha256_hex(root.string()).substr(0, hash_length);
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

json::object with_real_profile(const context& here, json::object request, std::string_view verb) {
    json::value* const key = request.if_contains("key");
    if (key == nullptr) return request;
    json::value& profile = key->as_object().at("profile");
    const std::string given(profile.as_string());
    if (given != "default" && !is_path(given)) profile = profile_called(here, given, verb);
    return request;
}

} // namespace sandboxd::cli
