// What the daemon was told: every option, from flags, then the environment, then the configuration
// file.
//
// One table in settings.cpp holds each option's name, default, meaning and check; help, parsing and
// errors come from it. An option `idle-stop` is the flag `--idle-stop`, the variable
// DEEPINFRA_SANDBOXD_IDLE_STOP and the line `idle-stop = 300` of config.ini. An empty variable
// counts as unset. Errors are config_error and name the source: the flag, the variable, or
// file:line.
#pragma once

#include "base/secret.hpp"
#include "sys/paths.hpp"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sys {

// Fine enough for tests that run in fractions of a second.
using duration = std::chrono::milliseconds;

enum class log_level { trace, debug, info, warning, error };

// Where the API key came from.
enum class key_source { none, environment, credentials, key_file, state_dir };

struct settings {
    // Of the cloud: https, or http for a loopback host only; no trailing slash. Also from
    // DEEPINFRA_BASE_URL (S).
    std::string base_url = "https://api.deepinfra.com";
    // Absolute. Where to listen when systemd passes no socket.
    std::filesystem::path socket;
    // Absolute. Holds the lock, the state, the instance id, the key.
    std::filesystem::path state_dir;
    // Never given by flag, since every user can read argv. Empty: a client may hand it over later.
    secret api_key;
    key_source api_key_from = key_source::none;
    // Size of new sandboxes; empty: the platform's default. Also from DEEPINFRA_SANDBOX_PLAN (S).
    std::string plan;

    // A running sandbox idle for so long is stopped; > 0.
    duration idle_stop = std::chrono::seconds(300);
    // So long after its last use background work alone keeps a sandbox running.
    duration background_max = std::chrono::seconds(1800);
    // When others wait for its place, a sandbox idle for so long is stopped for them.
    duration evict_min_idle = std::chrono::seconds(60);
    // A one-session sandbox is deleted when its client's process has been gone for so long.
    duration orphan_grace = std::chrono::seconds(60);
    // A sandbox that has been stopped for so long is deleted, by the cloud's clock; 0: never.
    duration retention{0};
    // US dollars; from so much on a day nothing new is started. 0: no budget.
    double budget_per_day = 0;
    // Sandboxes that may be active at once, 1..1000; the platform's own cap is 5 (S).
    int max_active = 5;
    // `timeout_seconds` of new sandboxes, the platform's own idle stop; >= 1 s.
    duration server_timeout = std::chrono::seconds(3600);
    // How long a command waits for a place among the active sandboxes, or while the platform
    // refuses it with 429; 0: not at all.
    duration queue_timeout = std::chrono::seconds(300);
    // A command whose output nobody has asked for during so long, and whose sandbox keeps all it
    // may of it, gives up the oldest instead of waiting; > 0.
    duration spool_grace = std::chrono::seconds(3600);
    // Whether a sandbox is stopped when a command in it cannot be ended otherwise.
    bool stop_if_unkillable = true;
    log_level level = log_level::info;

    // Oddities that do not stop the daemon; it logs them as warnings.
    std::vector<std::string> notices;
};

// `arguments`: what follows `serve`. Reads the configuration file and the API key's file, writes
// nothing.
settings load_settings(const std::vector<std::string>& arguments, const environment& env);

// The part of it that a client needs. Other options in the configuration file are not looked at, so
// that a mistake there does not keep `status` from working. A flag goes before a variable here,
// too: a state directory of a flag before the socket of a variable.
client_settings load_client_settings(std::optional<std::filesystem::path> socket_flag,
                                     std::optional<std::filesystem::path> state_dir_flag,
                                     const environment& env);

// `serve`'s options for people: flag, default, meaning; one a paragraph.
std::string describe_options();

// "300", "300s", "0.5", "5m", "1h", "7d"; "250ms" too. Throws std::invalid_argument, text without
// the source.
duration parse_duration(std::string_view text);

// The URL without a trailing slash. Throws std::invalid_argument unless it is https, or http to a
// loopback host, with neither user info, query nor fragment.
std::string check_base_url(std::string_view text);

// The key in DEEPINFRA_API_KEY; nothing if that is unset. Errors as of read_key_file.
std::optional<secret> key_in(const environment&);

// The key in `file`, stripped of surrounding white space; nothing if there is no such file. Throws
// config_error if group or others may read it, or if it holds no plausible key; its text never
// holds any of the content.
std::optional<secret> read_key_file(const std::filesystem::path& file);

// Throws std::invalid_argument (which does not hold it) when `key` could not stand in an HTTP
// header.
void check_api_key(const secret& key);

} // namespace sandboxd::sys
