#include "cli/connection.hpp"

#include "cli/failure.hpp"
#include "sys/file.hpp"
#include "sys/paths.hpp"
#include "sys/peer.hpp"
#include "sys/system_error.hpp"
#include "sys/version.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sandboxd::cli {
namespace fs = std::filesystem;
using namespace std::chrono_literals;
namespace {

constexpr std::size_t portion = 256U << 10;

constexpr std::string_view start_it =
    "start it with `systemctl --user start deepinfra-sandboxd.socket`, or in a terminal with "
    "`deepinfra-sandboxd serve`";
constexpr std::string_view look_at_it =
    "look at `systemctl --user status deepinfra-sandboxd` and `journalctl --user -u "
    "deepinfra-sandboxd`; restart it with `systemctl --user restart deepinfra-sandboxd`";

daemon_gone unresponsive(const fs::path& socket) {
    return {exit_code::unresponsive, "the daemon on " + socket.string() + " does not answer",
            std::string(look_at_it)};
}

daemon_gone closed(const fs::path& socket) {
    return {exit_code::unresponsive, "the daemon on " + socket.string() + " closed the connection",
            std::string(look_at_it), std::string(connection_closed)};
}

failure gibberish(const fs::path& socket) {
    return {exit_code::unresponsive,
            "what answers on " + socket.string() + " does not speak the daemon's protocol",
            std::string(look_at_it)};
}

// Whether the daemon with this id is the one of that directory.
bool owns(std::string_view instance, const fs::path& state_dir) {
    try {
        const auto text = sys::read_file(sys::instance_file(state_dir), 4096);
        return text && !instance.empty() && text->substr(0, text->find_first_of(" \n")) == instance;
    } catch (const std::system_error&) {
        return false; // who cannot read it is told nothing by it
    }
}

// Of an exec.output whose bytes follow its line.
std::optional<std::int64_t> raw_size(const json::object& message) {
    if (text_of(message, "method") != "exec.output") return std::nullopt;
    return integer_of(object_of(message, "params"), "raw");
}

int milliseconds_until(connection::clock::time_point deadline) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - connection::clock::now());
    return static_cast<int>(std::max<std::chrono::milliseconds::rep>(0, left.count()));
}

// A connected, non-blocking socket; nothing if nobody listens there.
sys::unique_fd connect_to(const fs::path& socket, connection::clock::time_point deadline) {
    sys::check_socket_path(socket);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket.c_str(), socket.native().size() + 1);
    sys::unique_fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) sys::throw_errno("cannot make a socket");
    while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        if (errno ==
            EAGAIN) { // somebody listens, with no room left for us; nothing tells when there is
            if (milliseconds_until(deadline) == 0) throw unresponsive(socket);
            ::poll(nullptr, 0, 20);
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR) return {};
        throw failure(exit_code::error, "cannot connect to " + socket.string() + ": " +
                                            std::generic_category().message(errno));
    }
    const sys::peer_credentials peer = sys::peer_of(fd.get());
    if (!sys::is_own_user(peer)) {
        throw failure(exit_code::error,
                      "the program on " + socket.string() + " belongs to user " +
                          std::to_string(peer.uid) + ", not to us",
                      "each user has a daemon of their own; run this as the same user");
    }
    return fd;
}

} // namespace

connection::connection(sys::unique_fd fd, fs::path socket)
    : fd_(std::move(fd)), socket_(std::move(socket)) {}

connection connection::open(const std::vector<fs::path>& sockets,
                            std::chrono::milliseconds patience,
                            const std::optional<fs::path>& state_dir) {
    const auto deadline = clock::now() + patience;
    connection result = begin(sockets, patience, state_dir);
    while (!result.take_greeting()) {
        pollfd waiting{result.fd(), POLLIN, 0};
        const int left = milliseconds_until(deadline);
        if (left == 0) throw unresponsive(result.socket());
        ::poll(&waiting, 1, left);
        result.receive();
    }
    return result;
}

connection connection::begin(const std::vector<fs::path>& sockets,
                             std::chrono::milliseconds patience,
                             const std::optional<fs::path>& state_dir) {
    const auto deadline = clock::now() + patience;
    std::string tried;
    for (const fs::path& socket : sockets) {
        if (sys::unique_fd fd = connect_to(socket, deadline)) {
            connection result(std::move(fd), socket);
            result.state_dir_ = state_dir;
            result.hello_ = result.send(
                "hello", {{"client", "deepinfra-sandboxd-cli/" + std::string(sys::version())},
                          {"protocol", 1},
                          {"raw_output", true}});
            return result;
        }
        tried += (tried.empty() ? "" : ", ") + socket.string();
    }
    throw failure(exit_code::not_running,
                  "the daemon is not running (nobody listens on " + tried + ")",
                  std::string(start_it));
}

bool connection::take_greeting() {
    while (hello_) {
        const auto message = next();
        if (!message) return false;
        if (integer_of(*message, "id") != *hello_) continue;
        if (const json::value* error = message->if_contains("error")) {
            if (!error->is_object()) throw gibberish(socket_);
            throw_error_answer(error->get_object());
        }
        greeting_ = object_of(*message, "result");
        if (integer_of(greeting_, "protocol") != 1) throw gibberish(socket_);
        if (state_dir_ && !owns(text_of(greeting_, "instance"), *state_dir_)) {
            throw failure(exit_code::not_running,
                          "the daemon of " + state_dir_->string() + " is not running (the one on " +
                              socket_.string() + " keeps its state elsewhere)",
                          "start it with `deepinfra-sandboxd serve --state-dir " +
                              state_dir_->string() + "`");
        }
        hello_.reset();
    }
    return true;
}

bool connection::has_key() const {
    return flag_of(object_of(greeting_, "account"), "configured");
}

bool connection::can(std::string_view capability) const {
    const json::array& all = array_of(greeting_, "capabilities");
    return std::any_of(all.begin(), all.end(), [&](const json::value& one) {
        return one.is_string() && std::string_view(one.get_string()) == capability;
    });
}

json::object connection::call(std::string_view method, json::object params) {
    const std::int64_t id = send(method, std::move(params));
    for (;;) {
        while (auto message = next()) {
            if (const json::value* name = message->if_contains("method")) {
                if (on_notification && name->is_string()) {
                    on_notification(name->get_string(), object_of(*message, "params"));
                }
            } else if (integer_of(*message, "id") == id) {
                if (message->contains("error")) throw_error_answer(object_of(*message, "error"));
                return object_of(*message, "result");
            }
        }
        pollfd waiting{fd_.get(), POLLIN, 0};
        ::poll(&waiting, 1, static_cast<int>(check_pulse().count()));
        receive();
    }
}

std::int64_t connection::send(std::string_view method, json::object params) {
    const std::int64_t id = ++last_id_;
    write_line({{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", std::move(params)}});
    return id;
}

void connection::notify(std::string_view method, json::object params) {
    write_line({{"jsonrpc", "2.0"}, {"method", method}, {"params", std::move(params)}});
}

void connection::write_line(const json::object& message) {
    const std::string line = json::serialize(message) + "\n";
    if (line.size() > longest_line) {
        throw failure(exit_code::error,
                      "the request has " + std::to_string(line.size()) + " bytes; at most " +
                          std::to_string(longest_line) + " fit into a message",
                      "write what is large to a file under /workspace first");
    }
    std::string_view left = line;
    auto deadline = clock::now() + 2 * pulse;
    while (!left.empty()) {
        const ssize_t n = ::send(fd_.get(), left.data(), left.size(), MSG_NOSIGNAL);
        if (n > 0) {
            left.remove_prefix(static_cast<std::size_t>(n));
            deadline = clock::now() + 2 * pulse;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) throw closed(socket_);
        // The daemon may be waiting for us to read before it reads on.
        pollfd waiting{fd_.get(), POLLIN | POLLOUT, 0};
        if (::poll(&waiting, 1, milliseconds_until(deadline)) == 0) throw unresponsive(socket_);
        if ((waiting.revents & POLLIN) != 0) receive();
    }
}

void connection::receive() {
    buffer_.erase(0, std::exchange(taken_, 0));
    for (;;) {
        char bytes[1 << 16];
        const ssize_t n = ::recv(fd_.get(), bytes, sizeof bytes, 0);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) return;
            throw closed(socket_);
        }
        if (n == 0) {
            // What came before the end still counts: often it says why.
            if (std::exchange(at_end_, true)) throw closed(socket_);
            return;
        }
        heard_ = clock::now();
        buffer_.append(bytes, static_cast<std::size_t>(n));
        if (static_cast<std::size_t>(n) < sizeof bytes) return;
        // Taken in turns with next(), in portions that a processor's cache holds.
        if (buffer_.size() >= portion) return;
    }
}

std::optional<std::string_view> connection::next_line() {
    const auto newline = buffer_.find('\n', taken_);
    if (newline == std::string::npos) {
        if (buffer_.size() - taken_ > longest_line) throw gibberish(socket_);
        return std::nullopt;
    }
    const std::string_view line = std::string_view(buffer_).substr(taken_, newline - taken_);
    taken_ = newline + 1;
    return line;
}

std::optional<json::object> connection::next() {
    raw_ = {};
    for (;;) {
        const std::size_t begin = taken_;
        const auto line = next_line();
        if (!line) return std::nullopt;
        boost::system::error_code error;
        json::value message = json::parse(json::string_view(line->data(), line->size()), error);
        if (error.failed() || !message.is_object()) throw gibberish(socket_);
        json::object& object = message.get_object();
        if (ping_ && integer_of(object, "id") == ping_) {
            ping_.reset();
            continue;
        }
        if (const auto size = raw_size(object)) {
            if (*size < 0 || *size > std::int64_t{longest_line}) throw gibberish(socket_);
            raw_ = std::string_view(buffer_).substr(taken_, static_cast<std::size_t>(*size));
            taken_ += raw_.size();
            if (std::cmp_less(raw_.size(), *size)) { // the rest is still to come
                taken_ = begin;
                return std::nullopt;
            }
        }
        return std::move(object);
    }
}

std::chrono::milliseconds connection::check_pulse() {
    const auto now = clock::now();
    if (ping_ && now - std::max(ping_sent_, heard_) >= pulse) throw unresponsive(socket_);
    if (!ping_ && now - heard_ >= pulse) {
        ping_ = send("daemon.ping", {});
        ping_sent_ = now;
    }
    const auto since = ping_ ? std::max(ping_sent_, heard_) : heard_;
    return std::max(1ms, std::chrono::ceil<std::chrono::milliseconds>(since + pulse - now));
}

void throw_error_answer(const json::object& error) {
    const json::object& data = object_of(error, "data");
    const std::string_view message = text_of(error, "message");
    const std::string name(text_of(data, "name"));
    throw failure(name == "incompatible_protocol" ? exit_code::unresponsive : exit_code::error,
                  message.empty() ? "the daemon refused, without saying why" : std::string(message),
                  std::string(text_of(data, "hint")), name);
}

std::string_view text_of(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_string()) return {};
    return value->get_string();
}

std::optional<double> number_of(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_number()) return std::nullopt;
    return value->to_number<double>();
}

std::optional<std::int64_t> integer_of(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_int64()) return std::nullopt;
    return value->get_int64();
}

bool flag_of(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    return value != nullptr && value->is_bool() && value->get_bool();
}

const json::object& object_of(const json::object& object, std::string_view name) {
    static const json::object none;
    const json::value* value = object.if_contains(name);
    return value != nullptr && value->is_object() ? value->get_object() : none;
}

const json::array& array_of(const json::object& object, std::string_view name) {
    static const json::array none;
    const json::value* value = object.if_contains(name);
    return value != nullptr && value->is_array() ? value->get_array() : none;
}

} // namespace sandboxd::cli
