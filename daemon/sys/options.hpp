// Where an option's value was found: flags, variables, configuration file. Private to sys/.
//
// Reading knows names only; settings.cpp knows what the values mean.
#pragma once

#include "sys/paths.hpp"

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sys {

enum class option_kind { text, path };

struct option_name {
    std::string_view name; // "idle-stop"
    option_kind kind = option_kind::text;
    std::string_view other_variable = {}; // one that others know too, such as DEEPINFRA_BASE_URL
};

struct given_value {
    std::string value;
    std::string source; // "--idle-stop", "DEEPINFRA_SANDBOXD_IDLE_STOP", "/.../config.ini:3"
};
using given_values = std::map<std::string, given_value, std::less<>>;

// Each throws config_error for a name it does not know. Relative paths are taken from the working
// directory in flags and variables, and refused in the file; "~/" there is the user's home.
//
// What is not understood is not repeated, but for what could be an option's name: it may be the API
// key, and these texts get into logs.
given_values read_flags(std::span<const option_name>, const std::vector<std::string>& arguments);
given_values read_config_file(std::span<const option_name>, const std::filesystem::path& file,
                              const std::string& content, const environment&);

// Variables with our prefix that name no option are put into `notices` instead: the environment is
// shared with other programs, some of them newer than this one.
given_values read_variables(std::span<const option_name>, const environment&,
                            std::vector<std::string>& notices);

// Boost's text about a flag that it does not know, without the value behind "=".
std::string without_value(const std::string& unknown_flag);

// "idle-stop" -> "DEEPINFRA_SANDBOXD_IDLE_STOP".
std::string variable_of(std::string_view option);

} // namespace sandboxd::sys
