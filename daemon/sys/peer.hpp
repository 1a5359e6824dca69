// Who is at the other end of a Unix socket, and does that process still live?
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::sys {

// A process for as long as the machine is up: a pid alone may be given to another one.
struct process_identity {
    pid_t pid = 0; // 0: in a pid namespace that we cannot see into
    std::uint64_t start_time =
        0; // clock ticks since boot (field 22 of /proc/<pid>/stat); 0: it was gone when we looked

    auto operator<=>(const process_identity&) const = default;
};

struct peer_credentials {
    uid_t uid = 0;
    process_identity process;
};

// Of the process that connected (SO_PEERCRED: as it was then). Throws std::system_error if `socket`
// is not a connected Unix socket, or if it cannot be told when that process began.
peer_credentials peer_of(int socket);

// The only user we serve.
bool is_own_user(const peer_credentials&) noexcept;

// Does it still run? A zombie does not, unless other threads of it do; one that cannot be looked at
// just now does. Never true for a pid of 0: fall back on the connection there.
bool alive(const process_identity&);

// Which start of the machine this is; empty if it cannot be told. Start times count from it.
std::string boot_id();

// What /proc/<pid>/stat says.
struct process_stat {
    char state = '?';
    std::uint64_t start_time = 0;
    long threads = 0;
};
// The command's name in it may hold blanks and parentheses. Nothing if it makes no sense.
std::optional<process_stat> parse_stat(std::string_view stat);

// For people: "python3 (pid 4711)"; "pid 4711" when its name cannot be read. Control characters are
// replaced.
std::string describe(const process_identity&);

} // namespace sandboxd::sys
