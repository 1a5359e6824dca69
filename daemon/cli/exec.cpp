// `exec`: one command in a sandbox, its output as it comes, its exit code as ours.
//
// One loop waits for the daemon, for signals and for room on stdout and stderr, so that a slow
// terminal holds up neither Ctrl-C nor the daemon's other clients. Output counts as consumed, and
// is acknowledged, once it is written. The command belongs to the daemon: losing the connection
// does not end it, and what became of it is then said to be unknown.
#include "base/base64.hpp"
#include "base/id.hpp"
#include "base/utf8.hpp"
#include "cli/exec_output.hpp"
#include "cli/signals.hpp"
#include "cli/verb.hpp"
#include "sys/file.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <system_error>

namespace sandboxd::cli {
namespace {

using namespace std::chrono_literals;
using clock = connection::clock;

constexpr std::string_view prefix = "deepinfra-sandboxd: ";
constexpr std::uint64_t window = 1u << 20;
// One write that a pipe with any room (POLLOUT) takes whole: PIPE_BUF.
constexpr std::size_t write_size = 4096;
// A cancel whose end is not told within this time is given up.
constexpr auto cancel_patience = 15s;

json::value bytes_value(std::string_view bytes) {
    if (is_utf8(bytes)) return json::string(bytes);
    return json::object{{"b64", base64_encode(bytes)}};
}

int exit_status(std::int64_t returncode) {
    if (returncode >= 0 && returncode <= 255) return static_cast<int>(returncode);
    if (returncode < 0 && returncode >= -127) return static_cast<int>(128 - returncode); // a signal
    return 255;
}

class exec_session {
public:
    exec_session(const context& here, json::object request)
        : here_(here), daemon_(here.connect()), exec_id_(request.at("exec_id").as_string()) {
        start_id_ = daemon_.send("exec.start", std::move(request));
    }

    int run() {
        try {
            return until_done();
        } catch (const failure& why) {
            if (why.code() != exit_code::unresponsive) throw;
            throw failure(exit_code::failed,
                          std::string(why.what()) + ": the outcome of command " + exec_id_ +
                              " is unknown",
                          why.hint());
        }
    }

private:
    int until_done() {
        for (;;) {
            while (auto message = daemon_.next())
                handle(*message);
            acknowledge();
            if (exit_ && output_.empty()) return finish();
            if (left_) return static_cast<int>(exit_code::cancelled);
            wait();
        }
    }

    // Sleeps until something can be done, and does what concerns signals and output.
    void wait() {
        // Beyond its window the daemon sends nothing; one that does is made to wait.
        const bool listen = output_.queued() < 4 * window && !exit_;
        pollfd waiting[3] = {
            {listen ? daemon_.fd() : -1, POLLIN, 0},
            {signals_.fd(), POLLIN, 0},
            {output_.empty() ? -1 : descriptor(output_.next_stream()), POLLOUT, 0},
        };
        auto patience = 1000ms;
        if (listen) patience = daemon_.check_pulse();
        if (cancel_deadline_ && !exit_) {
            const auto left =
                std::chrono::ceil<std::chrono::milliseconds>(*cancel_deadline_ - clock::now());
            if (left <= 0ms) give_up_cancel();
            patience = std::min(patience, left);
        }
        if (::poll(waiting, 3, static_cast<int>(patience.count())) < 0 && errno != EINTR) {
            throw failure(exit_code::failed,
                          "cannot wait: " + std::generic_category().message(errno));
        }
        if (waiting[1].revents != 0) interrupt(signals_.take());
        if (waiting[2].revents != 0) write_some();
        if (waiting[0].revents != 0) daemon_.receive();
    }

    static int descriptor(exec_output::stream which) {
        return which == exec_output::out ? STDOUT_FILENO : STDERR_FILENO;
    }

    void write_some() {
        clear_progress();
        const exec_output::stream to = output_.next_stream();
        const std::string_view bytes = output_.next_bytes().substr(0, write_size);
        const ssize_t n = ::write(descriptor(to), bytes.data(), bytes.size());
        if (n >= 0) {
            output_.wrote(static_cast<std::size_t>(n));
        } else if (errno != EINTR && errno != EAGAIN) {
            // Without a reader a command here would be ended by SIGPIPE; so is that one.
            if (errno != EPIPE) {
                unwritten_ = "cannot write its output: " + std::generic_category().message(errno);
            }
            output_.close(to);
            cancel();
        }
    }

    // Also what was thrown away because nobody reads it: the command must get to its end.
    void acknowledge() {
        if (const auto offset = output_.due_ack(); offset && !exit_) {
            daemon_.notify("exec.ack", {{"exec_id", exec_id_}, {"offset", *offset}});
        }
    }

    void interrupt(int count) {
        interrupts_ += count;
        if (interrupts_ > 1 || exit_) { // nothing left to cancel but the writing
            clear_progress();
            left_ = true;
            return;
        }
        cancel();
        if (here_.err_is_terminal) {
            say("cancelling the command; interrupt again to leave at once");
        }
    }

    void cancel() {
        if (cancel_id_ || exit_) return;
        cancel_id_ = daemon_.send("exec.cancel", {{"exec_id", exec_id_}});
        cancel_deadline_ = clock::now() + cancel_patience;
    }

    void give_up_cancel() {
        throw failure(exit_code::failed, "the end of the command is not confirmed",
                      "it may still be running; look with `deepinfra-sandboxd status`, try "
                      "`deepinfra-sandboxd cancel " +
                          exec_id_ + "`");
    }

    void handle(const json::object& message) {
        const std::string_view method = text_of(message, "method");
        const json::object& params = object_of(message, "params");
        if (method.empty()) {
            handle_answer(message);
        } else if (method == "sandbox.progress") {
            show_progress(params);
        } else if (text_of(params, "exec_id") != exec_id_) {
            return;
        } else if (method == "exec.output") {
            if (!output_.take(params)) {
                throw failure(exit_code::failed, "the daemon sent output that makes no sense");
            }
        } else if (method == "exec.exit") {
            exit_ = params;
        }
    }

    void handle_answer(const json::object& message) {
        const auto id = integer_of(message, "id");
        if (id == start_id_ && message.contains("error")) {
            throw_error_answer(object_of(message, "error"));
        }
        const json::object& result = object_of(message, "result");
        if (id == cancel_id_ && message.contains("result") && !flag_of(result, "confirmed")) {
            const std::string_view why = text_of(result, "message");
            say("the cancel is not confirmed" + (why.empty() ? "" : ": " + std::string(why)));
        }
    }

    int finish() {
        clear_progress();
        const json::object& end = *exit_;
        const std::string_view reason = text_of(end, "reason");
        const auto generation = integer_of(end, "generation").value_or(0);
        if (flag_of(end, "recreated") && generation > 1) {
            say("the sandbox was started anew for this command: processes and all outside "
                "/workspace "
                "are gone");
        }
        const auto dropped =
            static_cast<std::uint64_t>(integer_of(end, "dropped_bytes").value_or(0));
        if (const auto missing = std::max(dropped, output_.missing()); missing > 0) {
            say(std::to_string(missing) + " bytes of its output are missing");
        }
        const std::string message(text_of(end, "message"));
        if (!unwritten_.empty()) throw failure(exit_code::failed, unwritten_);
        if (reason == "exited") {
            if (!message.empty()) say(message);
            return exit_status(integer_of(end, "returncode").value_or(255));
        }
        if (reason == "timed_out") {
            say(message.empty() ? "the command timed out" : message);
            return static_cast<int>(exit_code::timed_out);
        }
        if (reason == "cancelled") {
            if (!message.empty()) say(message);
            return static_cast<int>(exit_code::cancelled);
        }
        const std::string_view started = text_of(end, "started");
        std::string what = message.empty() ? "the command failed" : message;
        what += started == "no"    ? " (it did not run)"
                : started == "yes" ? " (it ran; how it ended is not known)"
                                   : " (whether it ran is not known)";
        const json::object& error = object_of(end, "error");
        throw failure(exit_code::failed, what, std::string(text_of(error, "hint")),
                      std::string(text_of(error, "name")));
    }

    void say(const std::string& text) {
        clear_progress();
        const std::string line = std::string(prefix) + printable(text) + "\n";
        (void)!::write(STDERR_FILENO, line.data(), line.size());
    }

    // One line that is written over, until there is something else to show.
    void show_progress(const json::object& params) {
        if (!here_.err_is_terminal || !output_.empty()) return;
        const auto waited = number_of(params, "waited_s").value_or(0);
        std::string line = "\r" + std::string(prefix) + printable(text_of(params, "text"));
        if (waited >= 1) line += " (" + human_time(std::chrono::duration<double>(waited)) + ")";
        line += "\x1b[K";
        (void)!::write(STDERR_FILENO, line.data(), line.size());
        progress_shown_ = true;
    }

    void clear_progress() {
        if (!std::exchange(progress_shown_, false)) return;
        constexpr std::string_view erase = "\r\x1b[K";
        (void)!::write(STDERR_FILENO, erase.data(), erase.size());
    }

    const context& here_;
    connection daemon_;
    signal_watch signals_; // from here on: before there is a command, Ctrl-C simply ends us
    std::string exec_id_;
    std::int64_t start_id_ = 0;
    std::optional<std::int64_t> cancel_id_;
    std::optional<clock::time_point> cancel_deadline_;
    exec_output output_{window};
    std::optional<json::object> exit_; // the params of exec.exit
    int interrupts_ = 0;
    bool left_ = false;
    std::string unwritten_; // why output could not be written, other than for want of a reader
    bool progress_shown_ = false;
};

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

std::string all_of_stdin() {
    try {
        return sys::read_all(STDIN_FILENO, "stdin", connection::longest_line);
    } catch (const std::system_error& error) {
        if (error.code() != std::errc::file_too_large) throw;
        throw failure(exit_code::failed,
                      "stdin has more than the " + std::to_string(connection::longest_line) +
                          " bytes that fit into a message",
                      "write what is large to a file under /workspace first");
    }
}

int run(const context& here, const arguments& given) {
    if (given.command().empty()) {
        throw usage_error("no command: it follows \"--\"", "exec");
    }
    json::object request{
        {"exec_id", given.value("id").value_or("cli-" + random_hex(8))},
        {"key", json::object{{"profile", given.value("profile").value_or("default")},
                             {"task", given.value("task").value_or("default")}}}};
    json::array argv;
    for (const std::string& argument : given.command())
        argv.push_back(bytes_value(argument));
    request["argv"] = std::move(argv);
    if (const auto cwd = given.value("cwd")) request["cwd"] = bytes_value(*cwd);
    if (const auto timeout = given.value("timeout")) request["timeout_s"] = timeout_of(*timeout);
    if (json::object env = environment_of(given); !env.empty()) request["env"] = std::move(env);
    if (given.has("stdin")) request["stdin"] = bytes_value(all_of_stdin());
    request["window"] = window;
    return exec_session(here, std::move(request)).run();
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

The command is the daemon's: it goes on when this program is killed.

exit codes:
  the command's own; 124 it timed out; 130 it was cancelled;
  125 daemon or platform failed (the text says whether it ran)

examples:
  deepinfra-sandboxd exec -- ls -l
  deepinfra-sandboxd exec --task build --timeout 10m -- bash -c 'make -j4 && ./test'
  deepinfra-sandboxd exec -i -- wc -l <names.txt
)",
    .flags = {{"task,t", "TASK", "whose sandbox [default: default]"},
              {"profile,p", "PROFILE", "whose task [default: default]"},
              {"timeout", "TIME", "end it after so long: 90, 90s, 5m, 1h [default: never]"},
              {"cwd,C", "DIRECTORY", "where to run it [default: /workspace]"},
              {"env,e", "NAME=VALUE", "set a variable; may be repeated", true},
              {"stdin,i", nullptr, "give it our stdin [default: /dev/null]"},
              {"id", "EXEC_ID", "the command's id, which never runs twice [default: random]"}},
    .takes_command = true,
    .failed = exit_code::failed,
    .run = run,
};

} // namespace sandboxd::cli
