// Profiles as people call them. The plugin names one by the real path of its home, which cannot
// collide with another; people are shown, and may give, its short name.
#pragma once

#include "cli/verb.hpp"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::cli {

// "work" for ~/.hermes/profiles/work; with a short hash of its root, "work~3f9c21", for one that
// has its home elsewhere; what is no path as it is. `home`: the user's.
std::string profile_name(std::string_view profile, const std::filesystem::path& home);

// What the plugin calls the profile whose home is at this path: its real path, or "default" for
// ~/.hermes. Nothing for what is no path: it begins with none of "/", "~/", "./" and "../".
std::optional<std::string> profile_at(std::string_view path, const std::filesystem::path& home);

// Those that people call so: of `known`, and below ~/.hermes where there is such a home.
std::set<std::string> profiles_called(const std::string& name,
                                      const std::vector<std::string>& known,
                                      const std::filesystem::path& home);

// The daemon's answer with each key's profile by its name, to be shown to people.
json::object with_profile_names(json::object answer, const std::filesystem::path& home);

// {profile, task} of --profile and --task, as they were given.
json::object key_of(const arguments&);

// The profile that a path or a short name stands for; another name as it is. The daemon is asked
// which it knows. Throws usage_error where several are called so.
std::string real_profile(const context&, const std::string& given, std::string_view verb);

// A request with the real profile in its `key`, if it has one.
json::object with_real_profile(const context&, json::object request, std::string_view verb);

} // namespace sandboxd::cli
