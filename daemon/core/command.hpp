// A command as it was asked for, and as it is said to the platform, which knows an argument vector
// only.
//
// The two ways of saying it are attached_command.hpp and shim_command.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sandboxd::core {

inline constexpr std::size_t max_argument =
    131'071; // bytes of one argv element: Linux' MAX_ARG_STRLEN less its NUL
inline constexpr std::size_t max_arguments =
    2U << 20; // of all of them and the environment, as kernel_size counts: a quarter of the usual
              // limit of the stack. A sandbox with an environment of its own takes less
inline constexpr std::size_t least_arguments =
    131'072; // ARG_MAX: so much every Linux takes, whatever its limits

struct command_spec {
    // Exactly one of the three is set. Bytes, without NUL.
    std::vector<std::string> argv;
    std::optional<std::string> script;        // run by bash
    std::optional<std::uint64_t> script_size; // one of so many bytes that comes on its own, and is
                                              // put at upload_path("script", ...) before the start
    std::string script_sha256;                // of that one, in hexadecimal digits; empty: not told
    bool login = false;                       // the script's bash is a login shell

    std::string cwd; // empty: /workspace. One that is not there falls back to /workspace, with a
                     // notice on stderr
    std::vector<std::pair<std::string, std::string>> env; // on top of the sandbox's own
    std::optional<std::string> stdin_data; // nothing: /dev/null; empty: immediate end of file
    bool stdin_open = false;               // it comes on its own instead
    bool merge_output = false;             // stderr goes where stdout goes
};

struct upload {
    std::string path; // in the sandbox, below /workspace
    std::string bytes;
    int fd = -1; // else: the first `size` bytes of this file, which whoever made this keeps open
    std::uint64_t size = 0;
};

struct prepared_command {
    std::vector<std::string> argv; // valid UTF-8, each at most max_argument
    std::vector<upload> uploads;   // to be there before it runs; the command deletes them itself
};

enum class kill_signal { interrupt, terminate, kill }; // each sharper than the one before it

// Throws rpc_error: invalid_params for a NUL byte or a name no environment can hold,
// argument_too_long for what the kernel would refuse.
void check_spec(const command_spec& spec);
// Of what check_spec has passed, as it goes to the sandbox: throws likewise. What JSON text cannot
// carry as it is gets longer on the way.
void check_lengths(const std::vector<std::string>& argv);
// What the kernel counts of it: the strings, their NULs, and pointers to them.
std::size_t kernel_size(const std::vector<std::string>& argv) noexcept;

// Where input that is too long for an argument is put.
std::string upload_path(std::string_view kind, const std::string& exec_id);
// What takes it away again.
std::vector<std::string> remove_uploads(std::vector<std::string> paths);
// Its arguments are the script's path, and `-l` for a login shell. The file goes before the script
// begins.
inline constexpr std::string_view script_file_runner =
    "exec 3<\"$1\" && rm -f -- \"$1\" && shift && exec bash \"$@\" /dev/fd/3";

} // namespace sandboxd::core
