// Our stdin on its way to a command: reads it, sends it, takes the answers.
//
// What exec_input decides, done. One for a command, for as long as that is shown; the connection
// may change in between. Throws what the connection does.
#pragma once

#include "cli/connection.hpp"
#include "cli/exec_input.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace sandboxd::cli {

class stdin_feed {
public:
    stdin_feed(std::string exec_id, exec_input input)
        : exec_id_(std::move(exec_id)), input_(std::move(input)) {}

    // Stdin is to be polled, and then to be read once.
    bool wants() const noexcept { return input_.room() > 0; }
    void read();
    // Sends what can be sent now.
    void send(connection& daemon);
    // False: the message answers none of what was sent.
    bool take_answer(const json::object& message);
    // The connection is gone.
    void again() noexcept;

    // Why the command will not get the rest of its input, which is worse than none; once.
    std::optional<std::string> trouble() { return std::exchange(trouble_, std::nullopt); }

private:
    void spoil(std::string why);

    std::string exec_id_;
    exec_input input_;
    std::string buffer_;
    std::deque<std::int64_t> unanswered_; // oldest first
    std::optional<std::string> trouble_;
};

} // namespace sandboxd::cli
