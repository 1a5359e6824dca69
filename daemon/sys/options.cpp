#include "sys/options.hpp"

#include <boost/program_options.hpp>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace sandboxd::sys {
namespace fs = std::filesystem;
namespace po = boost::program_options;
namespace {

constexpr std::string_view prefix = "DEEPINFRA_SANDBOXD_";

po::options_description describe(std::span<const option_name> names) {
    po::options_description description;
    for (const option_name& option : names) {
        description.add_options()(std::string(option.name).c_str(), po::value<std::string>());
    }
    return description;
}

option_kind kind_of(std::span<const option_name> names, std::string_view name) {
    for (const option_name& option : names) {
        if (option.name == name) return option.kind;
    }
    return option_kind::text;
}

std::string trimmed(const std::string& text) {
    constexpr std::string_view blanks = " \t\r";
    const auto begin = text.find_first_not_of(blanks);
    return begin == std::string::npos
               ? std::string()
               : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// The line's name, if it could be an option's: anything else may be a key that was pasted there.
std::string quoted_name(const std::string& line) {
    const std::string name = trimmed(line.substr(0, line.find('=')));
    const bool plain = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == std::string::npos;
    return plain && name.size() <= 32 ? " \"" + name + "\"" : "";
}

constexpr std::string_view key_goes_elsewhere =
    " (the API key goes into a file of its own, see api-key-file)";

// A path of the working directory's; an empty one stays empty.
std::string absolute(const std::string& path) {
    return path.empty() ? path : fs::absolute(path).lexically_normal().string();
}

} // namespace

std::string variable_of(std::string_view option) {
    std::string name(prefix);
    for (const char c : option) {
        name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    return name;
}

given_values read_flags(std::span<const option_name> names,
                        const std::vector<std::string>& arguments) {
    given_values given;
    try {
        // No guessing: an abbreviation that works today may be ambiguous tomorrow.
        const auto style =
            po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
        const po::options_description description = describe(names);
        const auto parsed =
            po::command_line_parser(arguments).options(description).style(style).run();
        for (const auto& option : parsed.options) {
            if (option.position_key >= 0) {
                throw config_error("unexpected argument \"" + option.value.front() + "\"");
            }
            std::string value = option.value.empty() ? std::string() : option.value.front();
            if (kind_of(names, option.string_key) == option_kind::path) value = absolute(value);
            // The last one wins, so that a wrapper's default can be overridden.
            given[option.string_key] = {std::move(value), "--" + option.string_key};
        }
    } catch (const po::unknown_option& error) {
        throw config_error(without_value(error.what()));
    } catch (const po::error& error) {
        throw config_error(error.what());
    }
    return given;
}

std::string without_value(const std::string& unknown_flag) {
    const auto equals = unknown_flag.find('=');
    return equals == std::string::npos ? unknown_flag : unknown_flag.substr(0, equals) + "'";
}

given_values read_variables(std::span<const option_name> names, const environment& env,
                            std::vector<std::string>& notices) {
    given_values given;
    for (const option_name& option : names) {
        for (const std::string& variable :
             {variable_of(option.name), std::string(option.other_variable)}) {
            const auto value = env.get(variable);
            if (!value || given.contains(option.name)) continue;
            given[std::string(option.name)] = {
                option.kind == option_kind::path ? absolute(*value) : *value, variable};
        }
    }
    for (auto entry = env.variables.lower_bound(prefix);
         entry != env.variables.end() && entry->first.starts_with(prefix); ++entry) {
        const bool known = std::any_of(names.begin(), names.end(), [&](const option_name& option) {
            return variable_of(option.name) == entry->first;
        });
        if (!known) notices.push_back("variable " + entry->first + " names no option: ignored");
    }
    return given;
}

given_values read_config_file(std::span<const option_name> names, const fs::path& file,
                              const std::string& content, const environment& env) {
    given_values given;
    const po::options_description description = describe(names);
    std::istringstream lines(content);
    std::string line;
    // Line by line, because the library's errors do not tell where they are.
    for (int number = 1; std::getline(lines, line); ++number) {
        const std::string source = file.string() + ":" + std::to_string(number);
        line = trimmed(line);
        if (line.starts_with(';')) continue;
        if (line.starts_with('[')) {
            throw config_error(source + ": sections are not used here");
        }
        try {
            std::istringstream one_line(line);
            for (const auto& option : po::parse_config_file(one_line, description).options) {
                std::string value = option.value.front();
                if (kind_of(names, option.string_key) == option_kind::path && !value.empty()) {
                    if (value.starts_with("~/") && !env.home.empty()) {
                        value = (env.home / value.substr(2)).string();
                    }
                    if (value.front() != '/') {
                        throw config_error(source + ": " + option.string_key +
                                           " must be an absolute path");
                    }
                }
                const auto [earlier, first] =
                    given.try_emplace(option.string_key, given_value{value, source});
                if (!first) {
                    throw config_error(source + ": " + option.string_key + " is already set at " +
                                       earlier->second.source);
                }
            }
        } catch (const po::unknown_option&) {
            throw config_error(source + ": there is no such option" + quoted_name(line) +
                               std::string(key_goes_elsewhere));
        } catch (const po::error&) { // its text repeats the line
            throw config_error(source + ": not of the form name = value" +
                               std::string(key_goes_elsewhere));
        }
    }
    return given;
}

} // namespace sandboxd::sys
