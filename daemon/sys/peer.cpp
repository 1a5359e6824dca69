#include "sys/peer.hpp"

#include "sys/file.hpp"
#include "sys/system_error.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <charconv>

namespace sandboxd::sys {
namespace {

// Nothing: there is no such process. Throws std::system_error when that cannot be told, such as
// for want of a descriptor.
std::optional<std::string> read_proc(pid_t pid, const char* name) {
    try {
        return read_file("/proc/" + std::to_string(pid) + "/" + name, 4096);
    } catch (const std::system_error& error) {
        if (error.code().value() == ESRCH) return std::nullopt; // it ended while we looked
        throw;
    }
}

std::optional<process_stat> stat_of(pid_t pid) {
    if (pid <= 0) return std::nullopt;
    const auto text = read_proc(pid, "stat");
    return text ? parse_stat(*text) : std::nullopt;
}

} // namespace

peer_credentials peer_of(int socket) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
        throw_errno("cannot learn who connected");
    }
    const auto stat = stat_of(credentials.pid);
    return {credentials.uid, {credentials.pid, stat ? stat->start_time : 0}};
}

bool is_own_user(const peer_credentials& peer) noexcept {
    return peer.uid == ::geteuid();
}

bool alive(const process_identity& process) {
    std::optional<process_stat> stat;
    try {
        stat = stat_of(process.pid);
    } catch (const std::system_error&) {
        return true; // what may live is not taken for dead: its sandbox would be deleted
    }
    if (!stat || stat->start_time != process.start_time) return false;
    const bool ended = stat->state == 'Z' || stat->state == 'X';
    return !ended || stat->threads > 1; // the main thread may end before the others
}

std::string boot_id() {
    try {
        std::string id = read_file("/proc/sys/kernel/random/boot_id", 64).value_or("");
        while (!id.empty() && id.back() == '\n') {
            id.pop_back();
        }
        return id;
    } catch (const std::system_error&) {
        return {};
    }
}

std::optional<process_stat> parse_stat(std::string_view stat) {
    // Fields 1 and 2 are "pid (comm)"; comm is anything, so what counts is the last parenthesis.
    const auto close = stat.rfind(')');
    if (close == std::string_view::npos) return std::nullopt;
    stat.remove_prefix(close + 1);

    process_stat result;
    const auto number = [](std::string_view text, auto& value) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        return error == std::errc() && end == text.data() + text.size();
    };
    for (int field = 3; field <= 22; ++field) {
        const auto begin = stat.find_first_not_of(" \n");
        if (begin == std::string_view::npos) return std::nullopt;
        stat.remove_prefix(begin);
        const std::string_view text = stat.substr(0, stat.find_first_of(" \n"));
        stat.remove_prefix(text.size());
        if (field == 3) {
            result.state = text.front();
        } else if (field == 20 && !number(text, result.threads)) {
            return std::nullopt;
        } else if (field == 22 && !number(text, result.start_time)) {
            return std::nullopt;
        }
    }
    return result;
}

std::string describe(const process_identity& process) {
    const std::string pid = "pid " + std::to_string(process.pid);
    std::optional<std::string> name;
    try {
        if (process.pid > 0) name = read_proc(process.pid, "comm");
    } catch (const std::system_error&) {
        return pid;
    }
    if (!name || name->empty()) return pid;
    if (name->back() == '\n') name->pop_back();
    for (char& c : *name) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return *name + " (" + pid + ")";
}

} // namespace sandboxd::sys
