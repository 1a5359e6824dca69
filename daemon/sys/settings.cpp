#include "sys/settings.hpp"

#include "sys/fd.hpp"
#include "sys/file.hpp"
#include "sys/options.hpp"

#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

namespace sandboxd::sys {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t longest_key = 4096; // bytes, in a file

duration parse_positive(std::string_view text) {
    const duration value = parse_duration(text);
    if (value <= duration::zero()) throw std::invalid_argument("it must be more than 0");
    return value;
}

double parse_dollars(std::string_view text) {
    double value = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value < 1e6)) {
        throw std::invalid_argument("\"" + std::string(text) +
                                    "\" is not an amount of dollars such as 5 or 2.50");
    }
    return value;
}

int parse_count(std::string_view text, int low, int high) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
        throw std::invalid_argument("\"" + std::string(text) + "\" is not a number from " +
                                    std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
}

log_level parse_log_level(std::string_view text) {
    constexpr std::array<std::string_view, 5> names = {"trace", "debug", "info", "warning",
                                                       "error"};
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) {
        throw std::invalid_argument("\"" + std::string(text) +
                                    "\" is none of trace, debug, info, warning, error");
    }
    return static_cast<log_level>(found - names.begin());
}

// One option: how it is given, what it means, and how its text becomes a setting. `apply` throws
// std::invalid_argument, to which the caller adds the source; nullptr: used before the others.
struct option {
    option_name name;
    std::string_view argument;
    std::string_view fallback; // for people
    std::string_view meaning;
    void (*apply)(settings&, const std::string&);
};

constexpr option table[] = {
    {{"socket", option_kind::path},
     "PATH",
     "$XDG_RUNTIME_DIR/deepinfra-sandboxd/rpc.sock, else rpc.sock in the state directory",
     "where to listen, unless systemd passes a socket",
     nullptr},
    {{"state-dir", option_kind::path},
     "PATH",
     "${XDG_STATE_HOME:-~/.local/state}/deepinfra-sandboxd",
     "where the lock, the state and the key are kept",
     nullptr},
    {{"config", option_kind::path},
     "PATH",
     "${XDG_CONFIG_HOME:-~/.config}/deepinfra-sandboxd/config.ini",
     "the configuration file (flag or variable only)",
     nullptr},
    {{"api-key-file", option_kind::path},
     "PATH",
     "none",
     "a file that holds the API key, readable by you only",
     nullptr},
    {{"base-url", option_kind::text, "DEEPINFRA_BASE_URL"},
     "URL",
     "https://api.deepinfra.com",
     "the cloud's address; http:// for this machine only",
     [](settings& s, const std::string& text) { s.base_url = check_base_url(text); }},
    {{"plan", option_kind::text, "DEEPINFRA_SANDBOX_PLAN"},
     "PLAN",
     "the platform's",
     "size of new sandboxes; `deepinfra-sandboxd plans` lists them",
     [](settings& s, const std::string& text) { s.plan = text; }},
    {{"idle-stop"},
     "TIME",
     "300",
     "stop a sandbox that has been idle for so long",
     [](settings& s, const std::string& text) { s.idle_stop = parse_positive(text); }},
    {{"background-max"},
     "TIME",
     "1800",
     "background work alone keeps a sandbox for so long after its last use",
     [](settings& s, const std::string& text) { s.background_max = parse_duration(text); }},
    {{"evict-min-idle"},
     "TIME",
     "60",
     "a sandbox idle for so long is stopped when its place is wanted",
     [](settings& s, const std::string& text) { s.evict_min_idle = parse_duration(text); }},
    {{"orphan-grace"},
     "TIME",
     "60",
     "a one-session sandbox is deleted when its client's process has been gone for so long",
     [](settings& s, const std::string& text) { s.orphan_grace = parse_duration(text); }},
    {{"retention"},
     "TIME",
     "off",
     "delete a sandbox, and its files, that has been stopped for so long; off: never",
     [](settings& s, const std::string& text) {
         s.retention = text == "off" ? duration(0) : parse_positive(text);
     }},
    {{"budget-per-day"},
     "USD",
     "off",
     "start nothing new on a day that has cost so much; what runs goes on",
     [](settings& s, const std::string& text) {
         s.budget_per_day = text == "off" ? 0 : parse_dollars(text);
     }},
    {{"max-active"},
     "N",
     "5",
     "sandboxes that may be active at once",
     [](settings& s, const std::string& text) { s.max_active = parse_count(text, 1, 1000); }},
    {{"server-timeout"},
     "TIME",
     "3600",
     "the platform stops a sandbox that it has not heard of for so long",
     [](settings& s, const std::string& text) {
         s.server_timeout = parse_duration(text);
         if (s.server_timeout < std::chrono::seconds(1)) {
             throw std::invalid_argument("it must be 1 s at the least");
         }
     }},
    {{"queue-timeout"},
     "TIME",
     "300",
     "how long a command waits for a place, or while the platform refuses it (429)",
     [](settings& s, const std::string& text) { s.queue_timeout = parse_duration(text); }},
    {{"spool-grace"},
     "TIME",
     "3600",
     "a full spool that nobody has asked for during so long gives way, oldest output first",
     [](settings& s, const std::string& text) { s.spool_grace = parse_positive(text); }},
    {{"interrupt-fallback"},
     "WHAT",
     "stop",
     "stop, or none: what becomes of a sandbox in which a command cannot be ended",
     [](settings& s, const std::string& text) {
         if (text != "stop" && text != "none") {
             throw std::invalid_argument("it must be stop or none");
         }
         s.stop_if_unkillable = text == "stop";
     }},
    {{"log-level"},
     "LEVEL",
     "info",
     "trace, debug, info, warning or error",
     [](settings& s, const std::string& text) { s.level = parse_log_level(text); }},
};

constexpr auto names = [] {
    std::array<option_name, std::size(table)> result{};
    std::transform(std::begin(table), std::end(table), result.begin(),
                   [](const option& entry) { return entry.name; });
    return result;
}();

const given_value* find(const given_values& given, std::string_view name) {
    const auto found = given.find(name);
    return found == given.end() ? nullptr : &found->second;
}

std::optional<fs::path> path_in(const given_values& given, std::string_view name) {
    const given_value* value = find(given, name);
    if (value == nullptr) return std::nullopt;
    if (value->value.empty()) throw config_error(value->source + ": the path is empty");
    return fs::path(value->value);
}

// The configuration file's content; nothing if there is none. One that was named must be there.
std::optional<std::pair<fs::path, std::string>> find_config(const given_values& given,
                                                            const environment& env) {
    const given_value* named = find(given, "config");
    if (named == nullptr && env.home.empty() && !env.get("XDG_CONFIG_HOME")) return std::nullopt;
    const fs::path file = named != nullptr ? fs::path(named->value) : config_file(env);
    try {
        if (auto content = read_file(file, 1u << 20)) return {{file, std::move(*content)}};
    } catch (const std::system_error& error) {
        throw config_error(error.what());
    }
    if (named != nullptr) throw config_error(named->source + ": there is no file " + file.string());
    return std::nullopt;
}

secret checked(secret key, const std::string& source) {
    try {
        check_api_key(key);
    } catch (const std::invalid_argument& error) {
        throw config_error(source + ": " + error.what());
    }
    return key;
}

secret key_from_text(std::string text, const std::string& source) {
    constexpr std::string_view blanks = " \t\r\n";
    const auto begin = text.find_first_not_of(blanks);
    const auto end = text.find_last_not_of(blanks);
    return checked(
        secret(begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1)),
        source);
}

void find_api_key(settings& result, const given_values& given, const environment& env) {
    if (auto key = key_in(env)) {
        result.api_key = std::move(*key);
        result.api_key_from = key_source::environment;
        return;
    }
    if (const auto directory = env.get("CREDENTIALS_DIRECTORY")) {
        // systemd guards this directory itself, partly with access lists that look like group
        // permissions.
        const fs::path file = fs::path(*directory) / "deepinfra-api-key";
        try {
            if (auto content = read_file(file, longest_key)) {
                result.api_key = key_from_text(std::move(*content), file.string());
                result.api_key_from = key_source::credentials;
                return;
            }
        } catch (const std::system_error& error) {
            throw config_error(error.what());
        }
    }
    if (const auto file = path_in(given, "api-key-file")) {
        auto key = read_key_file(*file);
        if (!key) {
            throw config_error(find(given, "api-key-file")->source + ": there is no file " +
                               file->string());
        }
        result.api_key = std::move(*key);
        result.api_key_from = key_source::key_file;
        return;
    }
    if (auto key = read_key_file(result.state_dir / "api-key")) {
        result.api_key = std::move(*key);
        result.api_key_from = key_source::state_dir;
    }
}

} // namespace

settings load_settings(const std::vector<std::string>& arguments, const environment& env) {
    settings result;
    given_values given = read_flags(names, arguments);
    given.merge(read_variables(names, env, result.notices)); // keeps what is there already
    if (const auto config = find_config(given, env)) {
        given_values in_file = read_config_file(names, config->first, config->second, env);
        if (const given_value* nested = find(in_file, "config")) {
            throw config_error(nested->source + ": config cannot be set here");
        }
        given.merge(std::move(in_file));
    }

    const auto state_dir = path_in(given, "state-dir");
    result.state_dir = state_dir ? *state_dir : default_state_dir(env); // may need a home
    result.socket = path_in(given, "socket").value_or(default_socket(env, result.state_dir));
    check_socket_path(result.socket);
    for (const option& entry : table) {
        const given_value* value = find(given, entry.name.name);
        if (value == nullptr || entry.apply == nullptr) continue;
        try {
            entry.apply(result, value->value);
        } catch (const std::invalid_argument& error) {
            const bool in_file = value->source.starts_with('/');
            throw config_error(value->source + ": " +
                               (in_file ? std::string(entry.name.name) + ": " : "") + error.what());
        }
    }
    find_api_key(result, given, env);
    return result;
}

client_settings load_client_settings(std::optional<fs::path> socket_flag,
                                     std::optional<fs::path> state_dir_flag,
                                     const environment& env) {
    std::vector<std::string> ignored;
    const given_values given = read_variables(names, env, ignored);
    given_values in_file;
    try {
        if (const auto config = find_config(given, env)) {
            in_file = read_config_file(names, config->first, config->second, env);
        }
    } catch (const config_error&) {
        // The daemon reports it when it starts; what was found before it stands.
    }
    client_settings result;
    if (socket_flag) {
        result.socket = fs::absolute(*socket_flag);
    } else if (!state_dir_flag) {
        result.socket = path_in(given, "socket");
    }
    result.configured_socket = path_in(in_file, "socket");
    if (!state_dir_flag) state_dir_flag = path_in(given, "state-dir");
    if (!state_dir_flag) state_dir_flag = path_in(in_file, "state-dir");
    result.state_dir_named = state_dir_flag.has_value();
    result.state_dir = state_dir_flag ? fs::absolute(*state_dir_flag) : default_state_dir(env);
    return result;
}

std::optional<secret> key_in(const environment& env) {
    auto value = env.get("DEEPINFRA_API_KEY");
    if (!value) return std::nullopt;
    return key_from_text(std::move(*value), "DEEPINFRA_API_KEY");
}

std::string describe_options() {
    std::string text;
    for (const option& entry : table) {
        text += "  --" + std::string(entry.name.name) + " " + std::string(entry.argument) + "\n";
        text += "        " + std::string(entry.meaning) + "\n";
        text += "        [default: " + std::string(entry.fallback) + "]\n";
    }
    return text;
}

duration parse_duration(std::string_view text) {
    struct unit {
        std::string_view name;
        double milliseconds;
    };
    constexpr unit units[] = {{"", 1e3},   {"ms", 1},   {"s", 1e3},
                              {"m", 60e3}, {"h", 36e5}, {"d", 864e5}};
    constexpr double longest = 10 * 365 * 864e5; // ten years: sums stay far from overflow

    const auto digits = std::min(text.find_first_not_of("0123456789."), text.size());
    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + digits, number, std::chars_format::fixed);
    const auto unit_of = std::find_if(std::begin(units), std::end(units), [&](const unit& known) {
        return known.name == text.substr(digits);
    });
    if (error != std::errc() || end != text.data() + digits || unit_of == std::end(units)) {
        throw std::invalid_argument("\"" + std::string(text) +
                                    "\" is not a time; write for example 300, 0.5, 90s, 5m or 1h");
    }
    const double milliseconds = number * unit_of->milliseconds;
    if (milliseconds > longest) {
        throw std::invalid_argument("\"" + std::string(text) + "\" is more than ten years");
    }
    return duration(std::llround(milliseconds));
}

std::string check_base_url(std::string_view text) {
    const auto fail = [&](const std::string& why) {
        throw std::invalid_argument("\"" + std::string(text) + "\" " + why);
    };
    const auto parsed = boost::urls::parse_uri(text);
    if (parsed.has_error()) fail("is not a URL such as https://api.deepinfra.com");
    const boost::urls::url_view url = *parsed;
    if (url.has_userinfo()) {
        // Not repeated: it may hold a password.
        throw std::invalid_argument(
            "the URL holds a user name or password; the key goes elsewhere");
    }
    const std::string host = url.host_address();
    if (host.empty()) fail("names no host");
    // Boost.URL 1.81 reads "127.0.0.1.example.com" as the address and a path without a slash.
    if (!url.encoded_path().empty() && url.encoded_path().front() != '/') {
        fail("is not a URL such as https://api.deepinfra.com");
    }
    if (url.has_query() || url.has_fragment()) fail("has a query or a fragment");
    if (url.scheme_id() == boost::urls::scheme::http) {
        const bool loopback =
            host == "localhost" || host == "::1" ||
            (url.host_type() == boost::urls::host_type::ipv4 && host.starts_with("127."));
        if (!loopback) {
            fail("is not encrypted: http:// is for this machine only, because the API key would "
                 "be readable on its way");
        }
    } else if (url.scheme_id() != boost::urls::scheme::https) {
        fail("is not an https:// address");
    }
    std::string result(text);
    while (result.ends_with('/'))
        result.pop_back();
    return result;
}

std::optional<secret> read_key_file(const fs::path& file) {
    const unique_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) {
        if (errno == ENOENT) return std::nullopt;
        throw config_error("cannot open " + file.string() + ": " +
                           std::generic_category().message(errno));
    }
    // Asked of the open file, so that it cannot be exchanged in between.
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        throw config_error(file.string() + " is not a regular file");
    }
    if ((status.st_mode & 077) != 0) {
        throw config_error("others may read the API key in " + file.string() +
                           "; close it with: chmod 600 " + file.string());
    }
    if (status.st_uid != ::geteuid() && status.st_uid != 0) {
        throw config_error(file.string() + " belongs to user " + std::to_string(status.st_uid) +
                           ", not to us");
    }
    try {
        return key_from_text(read_all(fd.get(), file.string(), longest_key), file.string());
    } catch (const std::system_error& error) {
        throw config_error(error.what());
    }
}

void check_api_key(const secret& key) {
    if (key.empty()) throw std::invalid_argument("there is no API key in it");
    const bool printable = std::all_of(key.reveal().begin(), key.reveal().end(),
                                       [](char c) { return c > ' ' && c < '\x7f'; });
    if (!printable) {
        throw std::invalid_argument("the API key holds a blank or a character that is not ASCII");
    }
}

} // namespace sandboxd::sys
