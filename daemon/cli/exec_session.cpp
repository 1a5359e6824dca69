// One loop waits for the daemon, for signals, for stdin and for room on stdout and stderr, so that
// a slow terminal holds up neither Ctrl-C nor the daemon's other clients. Output counts as
// consumed, and is acknowledged, once it is written; the end once all is.
//
// The command is the daemon's, or rather its sandbox's. A connection that is lost is made again,
// and the command asked for at the position reached: by the same exec.start, which never runs it
// twice and runs it if no daemon has got to that, or, for want of its arguments or of the wish that
// it run, by exec.attach.
#include "cli/exec_session.hpp"

#include "cli/exec_ending.hpp"
#include "cli/exec_output.hpp"
#include "cli/interrupts.hpp"
#include "cli/notices.hpp"
#include "cli/output_sink.hpp"
#include "cli/returning_daemon.hpp"
#include "cli/signals.hpp"
#include "cli/stdin_feed.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

namespace sandboxd::cli {
namespace {

using namespace std::chrono_literals;
using clock = connection::clock;

constexpr std::uint64_t window = exec_call::window;
// A cancel whose end is not told within this time is given up.
constexpr auto cancel_patience = 15s;

daemon_gone ended() {
    return {exit_code::unresponsive, "the daemon ended"};
}

class exec_session {
public:
    exec_session(const context& here, connection daemon, exec_call call)
        : here_(here), call_(std::move(call)), daemon_(here, std::move(daemon), call_.patience),
          output_(window, call_.offset), notices_(here.err_is_terminal) {
        if (call_.input) stdin_.emplace(call_.exec_id, std::move(*call_.input));
    }

    int run() {
        while (!code_) {
            try {
                step();
            } catch (const daemon_gone& why) {
                lose(why.what());
            } catch (const failure& why) {
                if (asked_ == 0 && call_.start) throw with_remark(why, has_not_run);
                if (why.code() == exit_code::failed || asked_ == 0) throw;
                throw left_behind(why.what(), why.hint());
            }
        }
        return *code_;
    }

private:
    void step() {
        connection* const daemon = daemon_.up();
        if (daemon != nullptr && phase_ == phase::apart) ask(*daemon);
        while (phase_ != phase::apart && !exit_ && !code_) {
            const auto message = daemon->next();
            if (!message) break;
            handle(*message, daemon->raw());
        }
        if (phase_ == phase::together && !exit_) {
            if (stdin_) stdin_->send(*daemon);
            acknowledge(*daemon);
        }
        if (auto why = stdin_ ? stdin_->trouble() : std::nullopt; why && !exit_) {
            trouble_ = std::move(*why);
            cancel();
        }
        if (exit_ && output_.empty()) {
            finish();
        } else if (!code_) {
            wait();
        }
    }

    // -- the daemon, which may go and come back

    // What this connection knows of the command: nothing, what was asked, that it was accepted.
    enum class phase { apart, asking, together };

    void ask(connection& daemon) {
        if (asked_ > 0 && !daemon.can("exec.attach")) {
            throw failure(exit_code::error, "the daemon that is there now is too old to go on");
        }
        json::object params;
        // A command that is to be cancelled must not be started by that.
        const bool start = call_.start && !cancel_wanted_;
        if (start) {
            params = *call_.start;
            if (accepted_) params["resume"] = true;
        } else {
            params = {{"exec_id", call_.exec_id}, {"window", window}};
        }
        if (output_.end() > 0) params["offset"] = output_.end();
        ask_id_ = daemon.send(start ? "exec.start" : "exec.attach", std::move(params));
        ++asked_;
        phase_ = phase::asking;
    }

    void lose(const std::string& why) {
        phase_ = phase::apart;
        cancel_id_.reset();
        cancel_deadline_.reset();
        if (stdin_) stdin_->again();
        if (daemon_.lost(why) && call_.patience > 0ms) {
            notices_.say_to_people("the daemon is gone, waiting for it");
        }
    }

    // What is true of a command that we cannot follow any more.
    failure left_behind(const std::string& why, const std::string& first) const {
        std::string what = why + ": ";
        if (call_.start && !accepted_) {
            what += "whether command " + call_.exec_id + " was started is not known";
        } else {
            what += "command " + call_.exec_id + " goes on in its sandbox";
            if (output_.end() == 0) what += " if it had begun there";
            what += ", its outcome is not known";
        }
        if (cancel_wanted_) what += "; it is not cancelled";
        return {exit_code::failed, what, (first.empty() ? "" : first + ", then ") + way_back()};
    }

    std::string way_back() const {
        std::string text = "`deepinfra-sandboxd attach " + call_.exec_id;
        if (output_.written() > 0) text += " --offset " + std::to_string(output_.written());
        return text + "` shows the rest, `deepinfra-sandboxd cancel " + call_.exec_id + "` ends it";
    }

    // -- waiting

    // Sleeps until something can be done, and does what concerns signals, stdin and output.
    void wait() {
        // Beyond its window the daemon sends nothing; one that does is made to wait.
        const bool listen = !exit_ && output_.queued() < 4 * window;
        const auto patience = time_to_wait(listen);
        const bool read = stdin_ && !exit_ && stdin_->wants();
        pollfd waiting[4] = {
            {listen ? daemon_.fd() : -1, POLLIN, 0},
            {signals_.fd(), POLLIN, 0},
            {output_.empty() ? -1 : sinks_[output_.next_stream()].fd(), POLLOUT, 0},
            {read ? STDIN_FILENO : -1, POLLIN, 0},
        };
        if (::poll(waiting, 4, static_cast<int>(patience.count())) < 0 && errno != EINTR) {
            throw failure(exit_code::failed,
                          "cannot wait: " + std::generic_category().message(errno));
        }
        if (waiting[1].revents != 0 && signals_.take()) interrupt();
        if (waiting[2].revents != 0) write_some();
        if (waiting[3].revents != 0) stdin_->read();
        if (waiting[0].revents != 0) daemon_.receive();
    }

    std::chrono::milliseconds time_to_wait(bool listen) {
        auto patience = listen ? daemon_.time_to_wait() : 1000ms;
        if (cancel_deadline_ && !exit_) {
            const auto left =
                std::chrono::ceil<std::chrono::milliseconds>(*cancel_deadline_ - clock::now());
            if (left <= 0ms) give_up_cancel();
            patience = std::min(patience, left);
        }
        return patience;
    }

    // -- output

    void write_some() {
        notices_.clear();
        const exec_output::stream to = output_.next_stream();
        const ssize_t n = sinks_[to].write(output_.next_bytes());
        if (n > 0) {
            if (is_terminal(to)) {
                notices_.mid_line(output_.next_bytes()[static_cast<std::size_t>(n) - 1] != '\n');
            }
            output_.wrote(static_cast<std::size_t>(n));
        } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
            cannot_write(to, errno);
        }
    }

    // Or was, when we began.
    bool is_terminal(exec_output::stream which) const {
        return which == exec_output::out ? here_.out_is_terminal : here_.err_is_terminal;
    }

    // Without a reader a command here would be ended by SIGPIPE; so is ours. Without a terminal
    // (EIO) it goes on, as when SIGHUP ends us before we notice.
    void cannot_write(exec_output::stream to, int error) {
        if (error == EIO && is_terminal(to)) {
            code_ = 128 + SIGHUP;
            return;
        }
        const std::string text =
            "cannot write its output: " + std::generic_category().message(error);
        if (!call_.start) {
            if (error != EPIPE) throw failure(exit_code::failed, text, way_back());
            code_ = 128 + SIGPIPE;
            return;
        }
        reader_gone_ = error == EPIPE;
        if (!reader_gone_) {
            trouble_ = text;
            unwritten_ = true;
        }
        output_.close(to);
        cancel();
    }

    // Also what was thrown away because nobody reads it: the command must get to its end.
    void acknowledge(connection& daemon) {
        if (const auto position = output_.due_ack()) {
            daemon.notify("exec.ack", {{"exec_id", call_.exec_id}, {"offset", *position}});
        }
    }

    // -- interrupts

    void interrupt() {
        const interrupts::meaning meant = interrupts_.came(clock::now());
        if (meant == interrupts::meaning::echo) return;
        if (exit_) { // nothing is left to cancel but the writing
            code_ = static_cast<int>(exit_code::cancelled);
        } else if (!call_.start) {
            notices_.say("command " + call_.exec_id + " goes on; `deepinfra-sandboxd cancel " +
                         call_.exec_id + "` ends it");
            code_ = static_cast<int>(exit_code::cancelled);
        } else if (meant == interrupts::meaning::at_once) {
            leave();
        } else {
            cancel();
            notices_.say_to_people("cancelling the command; interrupt again to leave at once");
        }
    }

    // Without the command's end, but not without having asked for it if there is anybody to ask.
    void leave() {
        code_ = static_cast<int>(exit_code::cancelled);
        try {
            cancel();
        } catch (const daemon_gone&) {
            cancel_id_.reset();
        }
        notices_.say("left without its end: command " + call_.exec_id +
                     (cancel_id_ ? " is being cancelled and may still be running; "
                                 : " may still be running, as no daemon is there to cancel it; ") +
                     way_back());
    }

    // At once, or as soon as there is somebody to ask.
    void cancel() {
        cancel_wanted_ = true;
        if (cancel_id_ || exit_ || phase_ == phase::apart) return;
        cancel_id_ = daemon_.up()->send("exec.cancel", {{"exec_id", call_.exec_id}});
        cancel_deadline_ = clock::now() + cancel_patience;
    }

    [[noreturn]] void give_up_cancel() {
        throw failure(exit_code::failed, "the end of the command is not confirmed",
                      "it may still be running; look with `deepinfra-sandboxd status`, try "
                      "`deepinfra-sandboxd cancel " +
                          call_.exec_id + "`");
    }

    // -- messages

    void handle(const json::object& message, std::string_view raw) {
        const std::string_view method = text_of(message, "method");
        const json::object& params = object_of(message, "params");
        if (method.empty()) {
            handle_answer(message);
        } else if (method == "sandbox.progress") {
            if (output_.empty()) notices_.progress(params);
        } else if (text_of(params, "exec_id") != call_.exec_id) {
            return;
        } else if (method == "exec.output") {
            if (!output_.take(params, raw)) {
                throw failure(exit_code::unresponsive,
                              "the daemon sent output that makes no sense");
            }
        } else if (method == "exec.exit") {
            handle_exit(params);
        }
    }

    void handle_exit(const json::object& end) {
        if (was_not_sent(end) && call_.start) {
            if (!cancel_wanted_) {
                accepted_ = true;
                throw ended();
            }
            code_ = static_cast<int>(exit_code::cancelled);
            return;
        }
        exit_ = end;
    }

    void handle_answer(const json::object& message) {
        const auto id = integer_of(message, "id");
        if (id == ask_id_) {
            message.contains("error") ? handle_refusal(object_of(message, "error"))
                                      : handle_acceptance(object_of(message, "result"));
        } else if (stdin_ && stdin_->take_answer(message)) {
            return;
        } else if (id == cancel_id_ && message.contains("result")) {
            const json::object& result = object_of(message, "result");
            if (flag_of(result, "confirmed")) return;
            const std::string_view why = text_of(result, "message");
            notices_.say("the cancel is not confirmed" +
                         (why.empty() ? "" : ": " + std::string(why)));
        }
    }

    void handle_acceptance(const json::object& result) {
        if (call_.start && asked_ == 1 && flag_of(result, "attached")) {
            notices_.say_to_people("command " + call_.exec_id +
                                   " was started before; this is its output");
        }
        accepted_ = true;
        daemon_.settled();
        phase_ = phase::together;
        if (cancel_wanted_) cancel();
    }

    void handle_refusal(const json::object& error) {
        const std::string_view name = text_of(object_of(error, "data"), "name");
        if (name == "shutting_down") throw ended();
        if (name == "exec_not_found" && cancel_wanted_ && !accepted_) { // never to be started
            code_ = static_cast<int>(exit_code::cancelled);
            return;
        }
        std::string what(text_of(error, "message"));
        if (asked_ > 1 && name == "exec_not_found") what += ": what became of it is not known";
        const std::string hint(text_of(object_of(error, "data"), "hint"));
        if (asked_ > 1 && name != "exec_not_found") throw left_behind(what, hint);
        const failure refused(exit_code::failed, what, hint, std::string(name));
        throw call_.start && asked_ == 1 ? with_remark(refused, has_not_run) : refused;
    }

    void finish() {
        const auto total =
            std::max<std::int64_t>(integer_of(*exit_, "output_bytes").value_or(0), 0);
        const auto end = static_cast<std::uint64_t>(total);
        const exec_ending ending = read_ending(*exit_, output_.missing(end));
        if (!reader_gone_) { // else what output lacks is nobody's concern
            for (const std::string& remark : ending.remarks)
                notices_.say(remark);
        }
        if (unwritten_) {
            throw failure(exit_code::failed, trouble_,
                          "`deepinfra-sandboxd attach " + call_.exec_id + "` shows it again");
        }
        try {
            if (connection* const daemon = daemon_.up()) {
                daemon->notify("exec.ack", {{"exec_id", call_.exec_id}, {"offset", end}});
            }
        } catch (const daemon_gone&) {
            // The sandbox then keeps the command a while longer, which does no harm.
        }
        if (!trouble_.empty()) throw failure(exit_code::failed, trouble_);
        if (ending.trouble) throw *ending.trouble;
        code_ = ending.code;
    }

    const context& here_;
    exec_call call_;
    signal_watch signals_; // from here on: before there is a command, Ctrl-C simply ends us

    returning_daemon daemon_;
    phase phase_ = phase::apart;
    int asked_ = 0;                    // how often exec.start or exec.attach was sent
    std::int64_t ask_id_ = 0;          // the last of them
    bool accepted_ = false;            // one of them was
    std::optional<json::object> exit_; // the params of exec.exit
    std::optional<int> code_;

    exec_output output_;
    std::array<output_sink, 2> sinks_{output_sink(STDOUT_FILENO), output_sink(STDERR_FILENO)};
    std::optional<stdin_feed> stdin_;
    std::string trouble_; // why the command was ended, other than by request
    bool reader_gone_ = false;
    bool unwritten_ = false; // output was thrown away that somebody wanted

    interrupts interrupts_;
    bool cancel_wanted_ = false;
    std::optional<std::int64_t> cancel_id_;
    std::optional<clock::time_point> cancel_deadline_;
    notices notices_;
};

} // namespace

std::chrono::milliseconds patience_of(const arguments& given, const char* verb) {
    const auto text = given.value("reconnect");
    if (!text) return 30s;
    try {
        return std::chrono::ceil<std::chrono::milliseconds>(sys::parse_duration(*text));
    } catch (const std::invalid_argument& error) {
        throw usage_error(std::string("--reconnect: ") + error.what(), verb);
    }
}

int show_command(const context& here, connection daemon, exec_call call) {
    return exec_session(here, std::move(daemon), std::move(call)).run();
}

} // namespace sandboxd::cli
