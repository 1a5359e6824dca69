// What the emulator, its launcher and the init of a cell say to each other.
//
// A cell is the inside of one running sandbox: a set of namespaces with an init as process 1. All
// three sides are the same binary, so the messages are plain structs over SOCK_SEQPACKET pairs,
// with descriptors attached (SCM_RIGHTS).
#pragma once

#include "unique_fd.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace emulator::cell {

// emulator -> init. Attached: for `exec` a memfd with the exec_spec, the write ends of stdout and
// stderr; for `list` a memfd to fill.
enum class order_kind : std::uint32_t { exec, signal_group, signal_tree, list };
struct order {
    order_kind kind;
    std::uint32_t exec;  // the emulator's number of the command
    std::int32_t signal; // for the two signal orders
};

// init -> emulator
enum class report_kind : std::uint32_t {
    ready,   // the namespaces are set up
    failed,  // they could not be: `text` says why, `value` is errno
    started, // `value` = process id inside the cell
    refused, // execve failed with errno `value`; nothing ran
    exited,  // `value` = wait status
    listed,  // the memfd of `list` is filled
};
struct report {
    report_kind kind;
    std::uint32_t exec;
    std::int32_t value;
    char text[240];
};

// emulator -> launcher; attached: init's end of the control socket.
struct launch_order {
    std::uint64_t cookie;
    std::uint64_t scratch_mb; // size of /tmp, of /root and of the writable layers, MiB each
    char workspace[1024];     // host directory that becomes /workspace
    char staging[1024];       // empty host directory, mount point while the root is put together
    char hostname[64];
};
// launcher -> emulator; attached when it went well: a pidfd of the init.
struct launch_reply {
    std::uint64_t cookie;
    std::int32_t pid;   // of the init, as the emulator sees it; 0 when cloning failed
    std::int32_t error; // errno then
};

// A command line as it travels in a memfd.
struct exec_spec {
    std::vector<std::string> argv;
    std::vector<std::string> env;
    std::string cwd;
};
std::string encode(const exec_spec& spec);
exec_spec decode_exec_spec(std::string_view bytes);

// Sends `size` bytes and the descriptors as one message. False: the socket is full (non-blocking)
// or the peer is gone: see errno.
bool send_message(int socket, const void* data, std::size_t size, const std::vector<int>& fds);
// Receives one message; 0 = the peer is gone, -1 = errno. Descriptors arrive close-on-exec.
std::int64_t receive_message(int socket, void* data, std::size_t size, std::vector<unique_fd>& fds);

} // namespace emulator::cell
