// Where things are: home, configuration, state, runtime directory, socket.
//
// Everything is computed from an `environment`, a snapshot of the process's, so that tests need not
// change their own. XDG variables that are empty or relative are ignored, as their specification
// asks. Errors are config_error.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sys {

// What the user asked for cannot be done: an option, a variable or a configuration line. The text
// names the source.
class config_error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct environment {
    std::map<std::string, std::string, std::less<>> variables;
    // From the password database, because hermes may pin $HOME to one of its own directories; empty
    // if the user has no entry there.
    std::filesystem::path home;

    // The variable's value; nothing if it is unset or empty.
    std::optional<std::string> get(std::string_view name) const;

    // This process's variables and user.
    static environment current();
};

// `${XDG_CONFIG_HOME:-~/.config}/deepinfra-sandboxd/config.ini`.
std::filesystem::path config_file(const environment&);

// `$DEEPINFRA_SANDBOXD_STATE_DIR`, else `${XDG_STATE_HOME:-~/.local/state}/deepinfra-sandboxd`.
std::filesystem::path default_state_dir(const environment&);

// `$XDG_RUNTIME_DIR/deepinfra-sandboxd/rpc.sock`, if there is such a directory variable.
std::optional<std::filesystem::path> runtime_socket(const environment&);

// Where the daemon listens unless told otherwise: the runtime socket, else `<state dir>/rpc.sock`.
std::filesystem::path default_socket(const environment&, const std::filesystem::path& state_dir);

// What a client is told of the daemon's whereabouts.
struct client_settings {
    // Named by flag or variable: there and nowhere else.
    std::optional<std::filesystem::path> socket;
    // Of the configuration file: there, unless systemd passed the daemon another.
    std::optional<std::filesystem::path> configured_socket;
    std::filesystem::path state_dir;
    // Somebody chose it: no daemon will do that keeps its state elsewhere.
    bool state_dir_named = false;
};

// Where a client looks, best first: a named socket only; else the configured one, the runtime
// socket, the address that the running daemon left in `<state dir>/socket`, and `<state
// dir>/rpc.sock`. What a named state directory holds goes before the runtime socket.
std::vector<std::filesystem::path> client_sockets(const environment&, const client_settings&);

// The file in the state directory that names the running daemon's socket: one line.
std::filesystem::path socket_address_file(const std::filesystem::path& state_dir);

// The file that holds the id of the daemon of this state directory, as hello tells it: its first
// word.
std::filesystem::path instance_file(const std::filesystem::path& state_dir);

// Throws when the kernel could not bind this path: sun_path has room for 107 bytes.
void check_socket_path(const std::filesystem::path& socket);

} // namespace sandboxd::sys
