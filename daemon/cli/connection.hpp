// A blocking JSON-RPC client on the daemon's Unix socket (protocol/REFERENCE.md).
//
// Every wait is bounded by a pulse: when nothing has come for a while, daemon.ping is sent, and a
// daemon that does not answer that either counts as unresponsive; so long work may take its time
// and a hung daemon is still told apart. Errors are failures with the verb's exit code and a hint;
// daemon_gone where connecting again may help.
#pragma once

#include "sys/fd.hpp"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::cli {

namespace json = boost::json;

class connection {
public:
    using clock = std::chrono::steady_clock;

    // The longest line of the protocol, newline included.
    static constexpr std::size_t longest_line = 1u << 20;
    // Silence after which a sign of life is asked for, and then waited for.
    static constexpr std::chrono::seconds pulse{5};

    // Connects to the first of `sockets` that somebody listens on and says hello, within
    // `patience`. `state_dir`: the daemon must be the one that keeps its state there. Throws
    // exit_code::not_running or unresponsive.
    static connection open(const std::vector<std::filesystem::path>& sockets,
                           std::chrono::milliseconds patience = pulse,
                           const std::optional<std::filesystem::path>& state_dir = std::nullopt);
    // The same for a caller with a loop of its own: does not wait for the answer to hello, which
    // take_greeting() is for. `patience`: for a place in the queue of those who connect.
    static connection begin(const std::vector<std::filesystem::path>& sockets,
                            std::chrono::milliseconds patience,
                            const std::optional<std::filesystem::path>& state_dir);

    // Sends a request and waits for its answer: the result. An error answer is thrown as a failure
    // with exit_code::error.
    json::object call(std::string_view method, json::object params);

    // For a caller with a loop of its own (exec):
    // true once hello has been answered, which counts what receive() has read. Throws as open().
    bool take_greeting();
    // Sends a request, and answers its id, or throws if the line is too long.
    std::int64_t send(std::string_view method, json::object params);
    void notify(std::string_view method, json::object params);
    int fd() const noexcept { return fd_.get(); }
    // Reads what has come, without waiting. Throws if the daemon has closed the connection.
    void receive();
    // The next message that is not a sign of life.
    std::optional<json::object> next();
    // The bytes that came behind its line, of an exec.output; good until the next call of
    // receive().
    std::string_view raw() const noexcept { return raw_; }
    // Asks for a sign of life if one is due. Answers how long to wait for input before the next
    // call; throws if the daemon is unresponsive. Call it only when all input has been taken.
    std::chrono::milliseconds check_pulse();

    // Called for notifications that come while call() waits.
    std::function<void(std::string_view method, const json::object& params)> on_notification;

    // Whether the daemon had an API key when it said hello.
    bool has_key() const;
    // What the daemon offers beyond the first release of the protocol.
    bool can(std::string_view capability) const;
    const std::filesystem::path& socket() const noexcept { return socket_; }

private:
    connection(sys::unique_fd fd, std::filesystem::path socket);

    void write_line(const json::object& message);
    std::optional<std::string_view> next_line();

    sys::unique_fd fd_;
    std::filesystem::path socket_;
    std::optional<std::filesystem::path> state_dir_; // that the daemon is to own
    std::optional<std::int64_t> hello_;              // the request, until it is answered
    json::object greeting_;
    std::int64_t last_id_ = 0;
    std::string buffer_;
    std::size_t taken_ = 0; // bytes of buffer_ already given out
    std::string_view raw_;  // of buffer_
    bool at_end_ = false;   // the daemon has closed its side
    clock::time_point heard_ = clock::now();
    std::optional<std::int64_t> ping_;
    clock::time_point ping_sent_{};
};

// The failure that an error answer, or the `error` of exec.exit with `message` beside it, stands
// for.
[[noreturn]] void throw_error_answer(const json::object& error);

// A string that is there, or "".
std::string_view text_of(const json::object& object, std::string_view name);
// A number that is there, or nothing.
std::optional<double> number_of(const json::object& object, std::string_view name);
std::optional<std::int64_t> integer_of(const json::object& object, std::string_view name);
bool flag_of(const json::object& object, std::string_view name);
// An object or array that is there, or an empty one.
const json::object& object_of(const json::object& object, std::string_view name);
const json::array& array_of(const json::object& object, std::string_view name);

} // namespace sandboxd::cli
