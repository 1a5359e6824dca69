// The input of one command that comes in pieces after its start: a script too long for a message,
// and a stdin of any length.
//
// Owned by its session. Pieces come at offsets, so that one whose answer was lost may be sent again
// and is not taken twice. A script is collected in a file of ours, since it must be there as a
// whole before anything starts; stdin is handed to the runner in the sandbox, one piece in flight,
// and counts as accepted once the runner has it. Where there is no runner, stdin is collected too.
// Errors are rpc_error; after one of them nothing of that piece was taken.
#pragma once

#include "base/condition.hpp"
#include "base/digest.hpp"
#include "core/command.hpp"
#include "core/shim_command.hpp"
#include "core/shim_frames.hpp"
#include "exec/shim_call.hpp"
#include "exec/shim_keeper.hpp"
#include "sandbox/account.hpp"
#include "sys/fd.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::exec {

struct input_chunk {
    bool script = false; // else: stdin
    std::uint64_t offset = 0;
    std::string bytes;
    bool eof = false; // nothing comes after it
};

enum class input_state {
    open,   // more may come
    eof,    // all is there
    closed, // the command reads no more: what comes is thrown away
    ended   // so has the command
};
std::string_view to_string(input_state state) noexcept;

struct input_answer {
    std::uint64_t accepted = 0; // bytes that need not be sent again
    input_state state = input_state::open;
};

// A file without a name in `directory`: it goes with the descriptor, also when the daemon dies.
class collected_file {
public:
    explicit collected_file(std::filesystem::path directory) : directory_(std::move(directory)) {}

    void append(std::string_view bytes); // throws rpc_error internal_error
    int fd() const noexcept { return fd_.get(); }
    std::uint64_t size() const noexcept { return size_; }
    void drop() noexcept { fd_.reset(); }

private:
    std::filesystem::path directory_;
    sys::unique_fd fd_;
    std::uint64_t size_ = 0;
};

class command_input : public std::enable_shared_from_this<command_input> {
public:
    struct parts {
        boost::asio::any_io_executor executor;
        sandbox::account& account;
        shim_keeper& keeper;
        std::string exec_id;
        std::filesystem::path directory; // for files
        std::optional<std::uint64_t> script_size;
        std::string script_sha256; // empty: any script of that size will do
        bool stdin_open = false;
    };
    explicit command_input(parts with);

    // Completes when the piece is safe, the command reads no more, or it has ended. Throws
    // rpc_error: invalid_params (a hole, too much, a stream that was not announced), too_large,
    // too_many_requests.
    boost::asio::awaitable<input_answer> take(input_chunk chunk);

    // For the session. What there is for its start: waits for it.
    boost::asio::awaitable<void> script_complete();
    bool script_is_another() const noexcept { return script_is_another_; } // than announced
    boost::asio::awaitable<void> collect_stdin(); // it cannot be handed to a runner
    // The files collected, to be put in place; they live as long as this.
    std::vector<core::upload> files() const;
    // From now on a runner takes stdin. `accepted`: by it, so far; nothing: ask it.
    void hand_over(std::string sandbox_id, std::optional<std::uint64_t> accepted);
    void end(); // of the command

private:
    // Pieces of one stream that wait to be taken, oldest first.
    struct waiting {
        input_chunk chunk;
        bool done = false;
        std::optional<rpc_error> refused;
    };
    enum class sink { undecided, file, runner, nowhere };

    input_answer take_script(const input_chunk& chunk);
    input_answer collect(collected_file& into, std::uint64_t most, bool& complete,
                         const input_chunk& chunk);
    boost::asio::awaitable<input_answer> take_stdin(input_chunk chunk);
    boost::asio::awaitable<void> pump();
    boost::asio::awaitable<void> pump_once();
    boost::asio::awaitable<void> send(std::uint64_t offset, core::input_piece piece,
                                      std::string large);
    boost::asio::awaitable<shim_reply> tell(std::uint64_t offset, const core::input_piece& piece);
    boost::asio::awaitable<std::optional<std::string>> put_aside(std::uint64_t offset,
                                                                 std::string bytes);
    void take_report(const core::shim_note& note);
    input_answer answer() const { return {accepted_.value_or(0), state_}; }
    bool over() const noexcept { return state_ != input_state::open; }

    parts with_;
    collected_file script_;
    bool script_complete_ = false;
    digest script_sum_;
    bool script_is_another_ = false;
    collected_file stdin_;
    bool stdin_complete_ = false;

    sink sink_ = sink::undecided;
    std::string sandbox_id_;
    std::optional<std::uint64_t> accepted_; // of stdin; nothing: not known
    input_state state_ = input_state::open; // of stdin
    std::deque<std::shared_ptr<waiting>> waiting_;
    bool pumping_ = false;
    condition changed_;
};

} // namespace sandboxd::exec
