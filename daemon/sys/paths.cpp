#include "sys/paths.hpp"

#include "sys/file.hpp"

#include <pwd.h>
#include <sys/un.h>
#include <unistd.h>

#include <system_error>

extern char** environ; // NOLINT: the C library's own name

namespace sandboxd::sys {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view program = "deepinfra-sandboxd";

fs::path home_from_password_database() {
    std::vector<char> buffer(16384);
    passwd entry{};
    passwd* found = nullptr;
    while (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) == ERANGE) {
        buffer.resize(buffer.size() * 2);
    }
    return found != nullptr && found->pw_dir != nullptr ? fs::path(found->pw_dir) : fs::path();
}

std::optional<fs::path> absolute_directory(const environment& env, std::string_view variable) {
    const auto value = env.get(variable);
    if (!value || value->front() != '/') return std::nullopt;
    return fs::path(*value);
}

fs::path home_based(const environment& env, const char* below, const char* remedy) {
    if (env.home.empty()) {
        throw config_error("user " + std::to_string(::geteuid()) +
                           " has no home directory in the password database; set " + remedy);
    }
    return env.home / below;
}

} // namespace

std::optional<std::string> environment::get(std::string_view name) const {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
}

environment environment::current() {
    environment env;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text(*entry);
        const auto equals = text.find('=');
        if (equals != std::string_view::npos) {
            env.variables.emplace(text.substr(0, equals), text.substr(equals + 1));
        }
    }
    env.home = home_from_password_database();
    return env;
}

fs::path config_file(const environment& env) {
    const auto base = absolute_directory(env, "XDG_CONFIG_HOME");
    return (base ? *base : home_based(env, ".config", "XDG_CONFIG_HOME")) / program / "config.ini";
}

fs::path default_state_dir(const environment& env) {
    if (const auto named = env.get("DEEPINFRA_SANDBOXD_STATE_DIR")) return fs::absolute(*named);
    const auto base = absolute_directory(env, "XDG_STATE_HOME");
    return (base ? *base : home_based(env, ".local/state", "DEEPINFRA_SANDBOXD_STATE_DIR")) /
           program;
}

std::optional<fs::path> runtime_socket(const environment& env) {
    const auto base = absolute_directory(env, "XDG_RUNTIME_DIR");
    if (!base) return std::nullopt;
    return *base / program / "rpc.sock";
}

fs::path default_socket(const environment& env, const fs::path& state_dir) {
    return runtime_socket(env).value_or(state_dir / "rpc.sock");
}

std::vector<fs::path> client_sockets(const environment& env, const client_settings& where) {
    if (where.socket) return {*where.socket};
    std::vector<fs::path> sockets;
    const auto add = [&](const std::optional<fs::path>& socket) {
        if (!socket) return;
        for (const fs::path& known : sockets) {
            if (known == *socket) return;
        }
        sockets.push_back(*socket);
    };
    if (!where.state_dir_named) {
        add(where.configured_socket);
        add(runtime_socket(env));
    }
    try {
        if (const auto text = read_file(socket_address_file(where.state_dir), 4096)) {
            const std::string line = text->substr(0, text->find('\n'));
            if (!line.empty() && line.front() == '/') add(line);
        }
    } catch (const std::system_error&) {
        // Unreadable is as good as absent: it is only one of several places to look.
    }
    add(where.state_dir / "rpc.sock");
    add(where.configured_socket);
    // Last: systemd's socket of a daemon that never ran is here; another directory's daemon may be.
    add(runtime_socket(env));
    return sockets;
}

fs::path instance_file(const fs::path& state_dir) {
    return state_dir / "instance";
}

fs::path socket_address_file(const fs::path& state_dir) {
    return state_dir / "socket";
}

void check_socket_path(const fs::path& socket) {
    constexpr std::size_t room = sizeof(sockaddr_un::sun_path) - 1;
    if (socket.native().size() > room) {
        throw config_error("the socket's path has " + std::to_string(socket.native().size()) +
                           " bytes, and Linux has room for " + std::to_string(room) + ": " +
                           socket.string() +
                           "; name a shorter one with --socket or "
                           "DEEPINFRA_SANDBOXD_SOCKET");
    }
}

} // namespace sandboxd::sys
