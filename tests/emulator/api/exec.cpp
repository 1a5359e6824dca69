// POST exec: a command, and the stream of what it prints.
//
// An exec_stream is shared by the call that serves it, the timers that may end it and, when the
// client has gone and the platform keeps the command, by a drain that goes on without the call. One
// loop reads both pipes and writes lines; while a write waits for the client nothing is read, so a
// client that does not read blocks the command, and memory stays flat. Time limits kill by timer,
// not by the loop, so that they also hit a command whose client does not read.
#include "api/call.hpp"

#include "text.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/json.hpp>

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace asio = boost::asio;
namespace json = boost::json;
using steady = std::chrono::steady_clock;

namespace emulator::api {

namespace {

// Why the platform ends a command before it ends itself.
enum class verdict { none, timed_out, capped, output_limit };

class exec_stream : public std::enable_shared_from_this<exec_stream> {
public:
    exec_stream(world& all, cloud::sandbox_ptr where, std::shared_ptr<cell::cell> inside,
                std::shared_ptr<cell::command> command, std::shared_ptr<command_record> record)
        : all_(all), config_(all.settings), where_(std::move(where)), inside_(std::move(inside)),
          command_(std::move(command)), record_(std::move(record)), limit_(all.executor),
          beat_(all.executor), out_{&command_->out, "{\"stdout\":\"", &record_->stdout_bytes},
          err_{&command_->err, "{\"stderr\":\"", &record_->stderr_bytes} {}

    void set_limits(double timeout_s);
    task<void> serve(call& c);
    void abandon(); // the client has gone: do what the platform does then

private:
    struct channel {
        asio::posix::stream_descriptor* pipe;
        std::string_view opening;
        std::uint64_t* count;
        bool open = true, ready = true, waiting = false;
        std::string carry = {}; // the beginning of a character, for split_characters = join
    };

    task<void> pump(call& c);
    task<bool> forward(call& c, channel& from, std::size_t most);
    task<void> forward_rest(call& c, channel& from);
    task<void> drain();
    void read_away(channel& from);
    void wait_for(channel& from);
    void kill(const std::string& what);
    void on_limit(verdict why);
    void arm_heartbeat();
    void conclude();
    std::string terminal_line() const; // empty: the stream is cut
    int returncode() const;
    bool piped() const { return out_.open || err_.open; }

    world& all_;
    const config config_; // as it was when the command began
    cloud::sandbox_ptr where_;
    std::shared_ptr<cell::cell> inside_;
    std::shared_ptr<cell::command> command_;
    std::shared_ptr<command_record> record_;
    asio::steady_timer limit_, beat_;
    channel out_, err_;
    verdict verdict_ = verdict::none;
    double timeout_s_ = 0;
    bool concluded_ = false, detached_ = false, beat_due_ = false;
    steady::time_point last_line_ = steady::now();
    std::string line_;
    std::vector<char> buffer_;
};

void exec_stream::set_limits(double timeout_s) {
    timeout_s_ = std::min(timeout_s, config_.command_cap_s);
    const auto why =
        timeout_s > config_.command_cap_s || timeout_s == 0 ? verdict::capped : verdict::timed_out;
    limit_.expires_after(
        std::chrono::duration_cast<steady::duration>(std::chrono::duration<double>(timeout_s_)));
    limit_.async_wait([self = shared_from_this(), why](boost::system::error_code ec) {
        if (!ec) self->on_limit(why);
    });
}

void exec_stream::on_limit(verdict why) {
    if (concluded_ || verdict_ != verdict::none) return;
    verdict_ = why;
    kill(why == verdict::timed_out ? config_.timeout_kill : config_.cap_kill);
    command_->changed.notify();
}

void exec_stream::kill(const std::string& what) {
    if (what == "group" || what == "kill_group")
        inside_->signal_group(command_->number, SIGKILL);
    else if (what == "tree" || what == "kill_tree")
        inside_->signal_tree(command_->number, SIGKILL);
}

void exec_stream::wait_for(channel& from) {
    if (!from.open || from.ready || from.waiting) return;
    from.waiting = true;
    from.pipe->async_wait(from.pipe->wait_read,
                          [self = shared_from_this(), &from](boost::system::error_code) {
                              from.waiting = false;
                              from.ready = true;
                              self->command_->changed.notify();
                          });
}

// Sends at most `most` bytes as one line. False: nothing was there.
task<bool> exec_stream::forward(call& c, channel& from, std::size_t most) {
    if (!from.open || !from.ready) co_return false;
    const ssize_t got =
        ::read(from.pipe->native_handle(), buffer_.data(), std::min(most, buffer_.size()));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        from.ready = false;
        co_return false;
    }
    std::string_view bytes(buffer_.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    if (got <= 0) {
        from.open = false;
        from.pipe->close();
        if (from.carry.empty()) co_return true;
    }
    *from.count += bytes.size();
    std::string joined;
    if (config_.split_characters == "join") {
        joined = from.carry;
        joined += bytes;
        const std::size_t tail = from.open ? incomplete_tail(joined) : 0;
        from.carry = joined.substr(joined.size() - tail);
        joined.resize(joined.size() - tail);
        bytes = joined;
        if (bytes.empty()) co_return true;
    }
    line_ = from.opening;
    append_json_text(line_, bytes,
                     config_.replacement == "byte" ? replacement::byte : replacement::subpart);
    line_ += "\"}\n";
    last_line_ = steady::now();
    co_await c.answer.body(line_);
    if (config_.output_limit_bytes > 0 && verdict_ == verdict::none &&
        record_->stdout_bytes + record_->stderr_bytes >
            static_cast<std::uint64_t>(config_.output_limit_bytes)) {
        verdict_ = verdict::output_limit;
        kill(config_.output_limit_kill);
    }
    co_return true;
}

// What is in the pipe by now, and no more: somebody may be writing for ever.
task<void> exec_stream::forward_rest(call& c, channel& from) {
    int left = 0;
    if (from.open) ::ioctl(from.pipe->native_handle(), FIONREAD, &left);
    while (left > 0 && from.open) {
        const auto before = *from.count;
        from.ready = true;
        if (!co_await forward(c, from, static_cast<std::size_t>(left))) break;
        left -= static_cast<int>(*from.count - before);
    }
    if (!from.carry.empty()) {
        line_ = from.opening;
        append_json_text(line_, from.carry, replacement::subpart);
        line_ += "\"}\n";
        from.carry.clear();
        co_await c.answer.body(line_);
    }
}

void exec_stream::arm_heartbeat() {
    if (config_.heartbeat_ms <= 0) return;
    beat_.expires_at(last_line_ + std::chrono::milliseconds(config_.heartbeat_ms));
    beat_.async_wait([self = shared_from_this()](boost::system::error_code ec) {
        if (ec || self->concluded_) return;
        if (steady::now() - self->last_line_ >=
            std::chrono::milliseconds(self->config_.heartbeat_ms)) {
            self->beat_due_ = true;
            self->command_->changed.notify();
        } else
            self->arm_heartbeat();
    });
}

task<void> exec_stream::serve(call& c) {
    buffer_.resize(static_cast<std::size_t>(config_.chunk_bytes));
    record_->ended = "running";
    record_->pid = command_->pid;
    co_await c.answer.begin(200, "application/x-ndjson");
    last_line_ = steady::now();
    arm_heartbeat();
    co_await pump(c);
    co_await forward_rest(c, out_);
    co_await forward_rest(c, err_);
    conclude();
    if (config_.leftover_output == "drain" && piped()) {
        detached_ = true;
        asio::co_spawn(
            all_.executor, [self = shared_from_this()]() -> task<void> { co_await self->drain(); },
            asio::detached);
    } else {
        out_.pipe->close();
        err_.pipe->close();
    }
    std::string last =
        c.answer.fault().terminal.empty() ? terminal_line() : c.answer.fault().terminal + "\n";
    if (last.empty() && !c.answer.fault().omit_terminal) {
        c.connection.abort(false);
        throw http::connection_lost();
    }
    if (c.answer.fault().omit_terminal) last.clear();
    co_await c.answer.end(last);
}

// Until the command has ended, one way or the other.
task<void> exec_stream::pump(call& c) {
    const auto chunk = buffer_.size();
    for (;;) {
        if (c.connection.gone()) throw http::connection_lost();
        const bool some_out = co_await forward(c, out_, chunk);
        const bool some_err = co_await forward(c, err_, chunk);
        if (command_->lost) co_return;
        const bool killed = verdict_ != verdict::none;
        const auto& weapon = verdict_ == verdict::timed_out ? config_.timeout_kill
                             : verdict_ == verdict::capped  ? config_.cap_kill
                                                            : config_.output_limit_kill;
        if (killed && (command_->status || weapon == "none")) co_return;
        if (command_->status && (!config_.waits_for_children || !piped())) co_return;
        if (some_out || some_err) continue;
        if (beat_due_) {
            beat_due_ = false;
            last_line_ = steady::now();
            co_await c.answer.body("{}\n");
            arm_heartbeat();
            continue;
        }
        wait_for(out_);
        wait_for(err_);
        co_await command_->changed.wait();
    }
}

int exec_stream::returncode() const {
    const int status = command_->status.value_or(0);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    if (config_.signal_returncode == "negative") return -WTERMSIG(status);
    return config_.signal_returncode == "minus_one" ? -1 : 128 + WTERMSIG(status);
}

std::string exec_stream::terminal_line() const {
    const auto end = [](const std::string& outcome, int code, const std::string& message) {
        json::object line;
        if (outcome == "cut") return std::string();
        if (outcome == "returncode")
            line["returncode"] = code;
        else
            line["error"] = message;
        return json::serialize(line) + "\n";
    };
    std::string limit = std::to_string(timeout_s_);
    limit.erase(limit.find_last_not_of('0') + 1);
    if (limit.back() == '.') limit.pop_back();
    if (command_->lost)
        return end(config_.stop_outcome_of_streams, 137,
                   "Sandbox was stopped while the command was running");
    if (verdict_ == verdict::timed_out)
        return end(config_.timeout_outcome, 124, "Command timed out after " + limit + " seconds");
    if (verdict_ == verdict::capped)
        return end(config_.cap_outcome, 124,
                   "Command exceeded the maximum of " + limit + " seconds");
    if (verdict_ == verdict::output_limit)
        return end("error", 0,
                   "Command output exceeded the limit of " +
                       std::to_string(config_.output_limit_bytes) + " bytes");
    return end("returncode", returncode(), "");
}

void exec_stream::conclude() {
    if (concluded_) return;
    const char* how = verdict_ == verdict::timed_out      ? "timed_out"
                      : verdict_ == verdict::capped       ? "capped"
                      : verdict_ == verdict::output_limit ? "output_limit"
                      : command_->lost                    ? "stopped"
                                                          : "exited";
    concluded_ = true;
    limit_.cancel();
    beat_.cancel();
    record_->ended = std::string(detached_ ? "detached_" : "") + how;
    record_->ended_at = unix_now();
    if (command_->status) record_->returncode = returncode();
}

void exec_stream::abandon() {
    if (concluded_) return;
    detached_ = true;
    beat_.cancel();
    kill(config_.on_disconnect);
    asio::co_spawn(
        all_.executor, [self = shared_from_this()]() -> task<void> { co_await self->drain(); },
        asio::detached);
}

void exec_stream::read_away(channel& from) {
    char waste[65536];
    while (from.open) {
        const ssize_t got = ::read(from.pipe->native_handle(), waste, sizeof waste);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (got <= 0) {
            from.open = false;
            from.pipe->close();
        } else {
            *from.count += static_cast<std::uint64_t>(got);
            break; // let others have their turn; more wakes us again at once
        }
    }
    from.ready = false;
}

// Nobody listens any more; the command, or children of it, may go on.
task<void> exec_stream::drain() {
    auto self = shared_from_this();
    const std::string policy = concluded_ ? "drain" : config_.on_disconnect_output;
    if (policy == "close") {
        out_.open = err_.open = false;
        out_.pipe->close();
        err_.pipe->close();
    }
    for (;;) {
        if (policy == "drain") {
            if (out_.ready) read_away(out_);
            if (err_.ready) read_away(err_);
        }
        if (command_->lost) break;
        if (command_->status) {
            conclude();
            if (policy != "drain" || !piped()) break;
        }
        if (policy == "drain") {
            wait_for(out_);
            wait_for(err_);
        }
        co_await command_->changed.wait();
    }
    conclude();
    out_.pipe->close();
    err_.pipe->close();
}

struct watch_guard {
    http::connection& connection;
    ~watch_guard() { connection.watch(nullptr); }
};

struct order_of_client {
    cell::exec_spec spec;
    double timeout_s = 0;
};

order_of_client read_order(const call& c, const json::object& body) {
    order_of_client out;
    const auto* command = body.if_contains("command");
    if (!command || !command->is_array() || command->get_array().empty())
        c.refuse("command must be a list with at least one string");
    for (const auto& word : command->get_array()) {
        if (!word.is_string()) c.refuse("command must hold strings only");
        if (word.get_string().find('\0') != json::string::npos)
            c.refuse("command must not hold NUL bytes");
        out.spec.argv.emplace_back(word.get_string());
    }
    if (const auto* timeout = body.if_contains("timeout_seconds"); timeout && !timeout->is_null()) {
        if (!timeout->is_number() || timeout->to_number<double>() < 0)
            c.refuse("timeout_seconds must be a number, not negative");
        out.timeout_s = timeout->to_number<double>();
    }
    const auto& settings = c.all.settings;
    if (out.timeout_s == 0) out.timeout_s = settings.default_timeout_s;
    if (out.timeout_s > settings.command_cap_s && settings.timeout_over_cap == "reject")
        c.refuse("timeout_seconds must not exceed the maximum");
    out.spec.cwd = settings.default_cwd;
    out.spec.env = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOME=/root", "LANG=C.UTF-8"};
    return out;
}

// execve has failed: nothing ran, and the platform says so in its own way.
task<void> tell_refusal(call& c, const cell::command& command, const std::string& argv0) {
    const auto& settings = c.all.settings;
    const auto& how = command.refused == ENOENT || command.refused == ENOTDIR
                          ? settings.missing_argv0
                      : command.refused == E2BIG ? settings.too_long_argv
                                                 : settings.not_executable_argv0;
    const std::string message =
        "exec: " + argv0.substr(0, 200) + ": " + std::strerror(command.refused);
    co_await c.answer.begin(200, "application/x-ndjson");
    json::object line;
    if (how == "error")
        line["error"] = message;
    else {
        json::object text;
        text["stderr"] = message + "\n";
        const std::string first = json::serialize(text) + "\n";
        co_await c.answer.body(first);
        line["returncode"] = std::stoi(how);
    }
    const std::string last = json::serialize(line) + "\n";
    co_await c.answer.end(last);
}

} // namespace

task<void> serve_exec(call& c) {
    const auto which = c.all.platform->find(c.account, c.where.sandbox_id);
    const auto body = co_await c.read_json();
    const auto order = read_order(c, body);
    if (which->now == cloud::state::deleted)
        throw cloud::api_error{std::stoi(c.all.settings.deleted_call_status), "Sandbox is deleted"};
    if (which->now != cloud::state::running || !which->inside)
        throw cloud::api_error{
            409, "Sandbox is not running (state: " + std::string(cloud::name_of(which->now)) + ")"};

    const call_in_flight flight(*c.all.platform, which);
    auto record = c.all.records.begin_command();
    record->number = c.all.platform->next_command();
    record->sandbox_id = which->id;
    record->timeout_s = order.timeout_s;
    for (const auto& word : order.spec.argv)
        record->argv.push_back(word.substr(0, 256));
    const auto inside = which->inside;
    const auto command = inside->start(record->number, order.spec);
    while (!command->settled())
        co_await command->changed.wait();
    if (command->refused != 0) {
        record->ended = "refused";
        record->ended_at = unix_now();
        co_await tell_refusal(c, *command, order.spec.argv[0]);
        co_return;
    }
    auto stream = std::make_shared<exec_stream>(c.all, which, inside, command, record);
    stream->set_limits(order.timeout_s);
    const watch_guard guard{c.connection};
    c.connection.watch(&command->changed);
    try {
        co_await stream->serve(c);
    } catch (...) {
        stream->abandon();
        throw;
    }
}

} // namespace emulator::api
