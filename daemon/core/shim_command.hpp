// How the daemon speaks to the in-sandbox shim: argument vectors for the platform's exec
// (daemon/shim/frames.h is the specification). Pure.
#pragma once

#include "core/command.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::core {

inline constexpr std::size_t inline_stdin = 64U
                                            << 10; // bytes; in base64 it still fits one argument

// Where the shim of that hash lies in every sandbox: a name of its own for each build, as a running
// binary cannot be overwritten.
std::string shim_path(std::string_view hash);

// Puts an uploaded shim in its place and lets it look around: the upload gives no execute bit, and
// a rename is whole or not at all. Its output is that of `probe`.
std::vector<std::string> shim_install(const std::string& uploaded, const std::string& path);

// Tells one request from another under the same id: 64 hexadecimal digits.
std::string command_digest(const command_spec& spec,
                           std::optional<std::chrono::milliseconds> timeout);

// Starts the command, or attaches where the id is claimed. Throws as build_attached. `longest`:
// after so long the follower leaves by itself, well before the platform would choose what to end.
// `acknowledged`: ids of commands whose end the daemon has safely told; the shim forgets them on
// the way. `spool`: bytes, most of its output that the sandbox keeps. `marks`: see mark_board.
prepared_command shim_run(const std::string& shim, const std::string& exec_id,
                          const command_spec& spec,
                          std::optional<std::chrono::milliseconds> timeout,
                          std::chrono::seconds longest,
                          const std::vector<std::string>& acknowledged, std::uint64_t spool,
                          const std::vector<std::string>& marks = {});

// Never starts anything. `most`: as for bound_run. Unattended: it is only watched, and what it
// prints beyond its spool may be given up.
std::vector<std::string> shim_follow(const std::string& shim, const std::string& exec_id,
                                     std::uint64_t from, const std::string& digest,
                                     std::chrono::seconds longest, std::uint64_t most,
                                     bool attended);

// What is decided only when a call of `shim run` is sent. `most`: bytes printed by one follower,
// which then leaves by itself. `grace`: after so long a full spool that nobody attends gives up its
// oldest bytes.
void bound_run(std::vector<std::string>& argv, std::uint64_t most, std::chrono::milliseconds grace);

// Output before `pos` is safe and may be forgotten.
std::vector<std::string> shim_acknowledge(const std::string& shim, const std::string& exec_id,
                                          std::uint64_t pos);

// What comes at `offset` of the stdin of a command that was started with `stdin_open`. Neither
// bytes nor path nor eof: only asks how far it has got, and waits until what was accepted is
// written.
struct input_piece {
    std::string bytes; // at most inline_stdin
    std::string path;  // instead: of a file in the sandbox, which goes once it was taken
    bool eof = false;  // nothing comes after it
};
std::vector<std::string> shim_stdin(const std::string& shim, const std::string& exec_id,
                                    std::uint64_t offset, const input_piece& piece);

std::vector<std::string> shim_kill(const std::string& shim, const std::string& exec_id,
                                   kill_signal signal);

} // namespace sandboxd::core
