// `exec`: one command in a sandbox, its output as it comes, its exit code as ours.
#include "base/base64.hpp"
#include "base/id.hpp"
#include "base/utf8.hpp"
#include "cli/exec_ending.hpp"
#include "cli/exec_session.hpp"
#include "cli/profiles.hpp"
#include "cli/verb.hpp"
#include "sys/file.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace sandboxd::cli {
namespace {

// A stdin of at most so many bytes that are there already goes into the request: the command then
// costs one request to the cloud.
constexpr std::size_t small_stdin = 64u << 10;

json::value bytes_value(std::string_view bytes) {
    if (is_utf8(bytes)) return json::string(bytes);
    return json::object{{"b64", base64_encode(bytes)}};
}

json::object environment_of(const arguments& given) {
    json::object env;
    for (const std::string& setting : given.values("env")) {
        const auto equals = setting.find('=');
        if (equals == std::string::npos || equals == 0) {
            throw usage_error("--env wants NAME=VALUE, not \"" + setting + "\"", "exec");
        }
        env[setting.substr(0, equals)] = bytes_value(std::string_view(setting).substr(equals + 1));
    }
    return env;
}

double timeout_of(const std::string& text) {
    try {
        const double seconds = std::chrono::duration<double>(sys::parse_duration(text)).count();
        if (seconds > 0) return seconds;
    } catch (const std::invalid_argument& error) {
        throw usage_error(std::string("--timeout: ") + error.what(), "exec");
    }
    throw usage_error("--timeout: it must be more than 0", "exec");
}

// For a daemon that takes all of it in the request, or not at all.
std::string all_of_stdin() {
    try {
        return sys::read_all(STDIN_FILENO, "stdin", connection::longest_line);
    } catch (const std::system_error& error) {
        if (error.code() != std::errc::file_too_large) throw;
        throw failure(
            exit_code::failed,
            "stdin has more than the " + std::to_string(connection::longest_line) +
                " bytes that fit into a message",
            "write what is large to a file under /workspace first, or upgrade the daemon");
    }
}

struct stdin_begin {
    std::string bytes;
    bool whole = false; // that is all of it
};

// What can be read without waiting, and a little more than is small at most.
stdin_begin begin_of_stdin() {
    stdin_begin begin;
    while (begin.bytes.size() <= small_stdin) {
        pollfd ready{STDIN_FILENO, POLLIN, 0};
        if (::poll(&ready, 1, 0) == 0) return begin;
        char bytes[1 << 14];
        const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (n == 0) {
            begin.whole = true;
            return begin;
        }
        if (n > 0) {
            begin.bytes.append(bytes, static_cast<std::size_t>(n));
        } else if (errno == EAGAIN) {
            return begin;
        } else if (errno != EINTR) {
            throw failure(exit_code::failed,
                          "cannot read stdin: " + std::generic_category().message(errno));
        }
    }
    return begin;
}

// Puts our stdin into the request, or answers what is to be passed on while the command runs.
std::optional<exec_input> add_stdin(json::object& request, const connection& daemon) {
    if (!daemon.can("exec.stdin")) {
        request["stdin"] = bytes_value(all_of_stdin());
        return std::nullopt;
    }
    stdin_begin begin = begin_of_stdin();
    if (begin.whole && begin.bytes.size() <= small_stdin) {
        request["stdin"] = bytes_value(begin.bytes);
        return std::nullopt;
    }
    request["stdin_open"] = true;
    exec_input input(std::move(begin.bytes));
    if (begin.whole) input.end();
    return input;
}

int run(const context& here, const arguments& given) {
    if (given.command().empty()) {
        throw usage_error("no command: it follows \"--\"", "exec");
    }
    exec_call call;
    call.exec_id = given.value("id").value_or("cli-" + random_hex(8));
    call.patience = patience_of(given, "exec");
    json::object request{{"exec_id", call.exec_id}, {"key", key_of(given)}};
    json::array argv;
    for (const std::string& argument : given.command())
        argv.push_back(bytes_value(argument));
    request["argv"] = std::move(argv);
    if (const auto cwd = given.value("cwd")) request["cwd"] = bytes_value(*cwd);
    if (const auto timeout = given.value("timeout")) request["timeout_s"] = timeout_of(*timeout);
    if (json::object env = environment_of(given); !env.empty()) request["env"] = std::move(env);
    request["window"] = exec_call::window;
    std::optional<connection> daemon;
    try {
        daemon.emplace(here.connect_with_key());
        if (given.has("stdin")) call.input = add_stdin(request, *daemon);
        call.start = with_real_profile(here, std::move(request), "exec");
    } catch (const usage_error&) {
        throw;
    } catch (const failure& why) {
        // Under an id of the user's it may have run before.
        throw with_remark(why, given.has("id") ? "nothing was sent" : has_not_run);
    } catch (const sys::config_error& why) {
        throw with_remark(failure(exit_code::failed, why.what()), has_not_run);
    }
    return show_command(here, std::move(*daemon), std::move(call));
}

} // namespace

const verb exec_verb{
    .name = "exec",
    .usage = "exec [OPTION...] -- COMMAND [ARGUMENT...]",
    .summary = "run a command in a sandbox",
    .details =
        R"(Runs COMMAND in the sandbox of a task, which is created or started if need be, and passes
its output and its exit code on. The arguments are passed as they are: no shell, unless
COMMAND is one. Ctrl-C ends this command and nothing else; a second one leaves at once.

The command goes on when this program is killed, when the daemon is, and while it is upgraded:
this program waits for it and goes on where it was. `attach` shows a command that was left. The
same --id again never runs it twice: it attaches, and refuses another command under that id.

exit codes:
  the command's own; 124 it timed out; 130 it was cancelled;
  125 daemon or platform failed (the text says whether it ran)

examples:
  deepinfra-sandboxd exec -- ls -l
  deepinfra-sandboxd exec --task build --timeout 10m -- bash -c 'make -j4 && ./test'
  deepinfra-sandboxd exec -i -- wc -l <names.txt
  deepinfra-sandboxd exec -i -- python3 -i         # type, and end with Ctrl-D
)",
    .flags = {{"task,t", "TASK", "whose sandbox [default: default]"},
              {"profile,p", "PROFILE", "whose task [default: default]"},
              {"timeout", "TIME", "end it after so long: 90, 90s, 5m, 1h [default: never]"},
              {"cwd,C", "DIRECTORY", "where to run it [default: /workspace]"},
              {"env,e", "NAME=VALUE", "set a variable; may be repeated", true},
              {"stdin,i", nullptr,
               "give it our stdin, of any size, a terminal too [default: /dev/null]"},
              {"id", "EXEC_ID", "the command's id, which never runs twice [default: random]"},
              reconnect_flag},
    .takes_command = true,
    .failed = exit_code::failed,
    .run = run,
};

} // namespace sandboxd::cli
