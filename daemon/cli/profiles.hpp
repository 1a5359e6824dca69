// Profiles as people call them. The plugin names one by the real path of its home, which cannot
// collide with another; people are shown, and may give, its short name.
#pragma once

#include "cli/verb.hpp"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace sandboxd::cli {

// "work" for ~/.hermes/profiles/work; with a short hash of its root, "work~3f9c21", for one that
// has its home elsewhere; what is no path as it is. `home`: the user's.
std::string profile_name(std::string_view profile, const std::filesystem::path& home);

// The daemon's answer with each key's profile by its name, to be shown to people.
json::object with_profile_names(json::object answer, const std::filesystem::path& home);

// {profile, task} of --profile and --task, as they were given.
json::object key_of(const arguments&);

// A request whose `key`, if it has one, may name a profile so: it is looked for among the daemon's
// sandboxes, and stays as it is where none is called so. Throws usage_error where several are.
json::object with_real_profile(const context&, json::object request, std::string_view verb);

} // namespace sandboxd::cli
