#include "exec/input.hpp"

#include "core/backoff.hpp"
#include "exec/upload.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::size_t most_waiting = 8;
constexpr std::chrono::seconds written_wait{20};     // the shim's, for the command to take a piece
constexpr std::size_t together = 4U << 20;           // bytes handed over at once
constexpr std::uint64_t most_collected = 100U << 20; // bytes: what one PUT takes (P)

[[noreturn]] void refuse(const std::string& why) {
    throw rpc_error(error_name::invalid_params, why + "; nothing of it was taken");
}

[[noreturn]] void refuse_hole(std::uint64_t offset, std::uint64_t accepted) {
    refuse("'offset' is " + std::to_string(offset) + ", but only " + std::to_string(accepted) +
           " bytes have been accepted so far");
}

// By the runner itself: the shim may have had no word of it in time.
bool answered(const shim_reply& reply) {
    return reply.note && reply.note->name == "stdin" && reply.note->text("state") != "unanswered";
}

} // namespace

std::string_view to_string(input_state state) noexcept {
    switch (state) {
    case input_state::open:
        return "open";
    case input_state::eof:
        return "eof";
    case input_state::closed:
        return "closed";
    case input_state::ended:
        return "ended";
    }
    return "ended";
}

void collected_file::append(std::string_view bytes) {
    const auto fail = [] {
        throw rpc_error(error_name::internal_error, "input could not be kept in the state "
                                                    "directory: " +
                                                        std::generic_category().message(errno));
    };
    if (!fd_) {
        fd_.reset(::open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
        if (!fd_) {
            fail();
        }
    }
    std::uint64_t at = size_;
    while (!bytes.empty()) {
        const ssize_t written =
            ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            fail();
        }
        at += static_cast<std::uint64_t>(written);
        bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    size_ = at;
}

command_input::command_input(parts with)
    : with_(std::move(with)), script_(with_.directory), stdin_(with_.directory),
      changed_(with_.executor) {}

asio::awaitable<input_answer> command_input::take(input_chunk chunk) {
    if (chunk.script) {
        if (!with_.script_size) {
            refuse("no script was announced ('script_size' of exec.start)");
        }
        co_return take_script(chunk);
    }
    if (!with_.stdin_open) {
        refuse("this command's stdin is not open ('stdin_open' of exec.start)");
    }
    co_return co_await take_stdin(std::move(chunk));
}

// -- collected here

input_answer command_input::collect(collected_file& into, std::uint64_t most, bool& complete,
                                    const input_chunk& chunk) {
    if (chunk.offset > into.size()) {
        refuse_hole(chunk.offset, into.size());
    }
    const std::uint64_t known =
        std::min<std::uint64_t>(into.size() - chunk.offset, chunk.bytes.size());
    const std::string_view fresh = std::string_view(chunk.bytes).substr(known);
    if (!fresh.empty() && complete) {
        refuse("it goes on after its end");
    }
    if (into.size() + fresh.size() > most) {
        throw rpc_error(error_name::too_large, "that would be more than " + std::to_string(most) +
                                                   " bytes; nothing of it was taken");
    }
    into.append(fresh);
    complete = complete || chunk.eof;
    changed_.notify_all();
    return {into.size(), complete ? input_state::eof : input_state::open};
}

input_answer command_input::take_script(const input_chunk& chunk) {
    if (sink_ == sink::nowhere || script_complete_) {
        return {script_.size(), sink_ == sink::nowhere ? input_state::ended : input_state::eof};
    }
    const std::uint64_t before = script_.size();
    bool complete = false;
    input_answer answer = collect(script_, *with_.script_size, complete, chunk);
    if (complete && script_.size() != *with_.script_size) {
        refuse("the script ends after " + std::to_string(script_.size()) +
               " bytes, announced were " + std::to_string(*with_.script_size));
    }
    if (script_.size() > before) {
        const auto known = static_cast<std::size_t>(before - chunk.offset);
        script_sum_.add(std::string_view(chunk.bytes).substr(known));
    }
    script_complete_ = script_.size() == *with_.script_size;
    if (script_complete_ && !with_.script_sha256.empty()) {
        script_is_another_ = script_sum_.take() != with_.script_sha256;
    }
    answer.state = script_complete_ ? input_state::eof : input_state::open;
    return answer;
}

asio::awaitable<void> command_input::script_complete() {
    while (with_.script_size && !script_complete_) {
        co_await changed_.wait();
    }
}

asio::awaitable<void> command_input::collect_stdin() {
    if (!with_.stdin_open) {
        co_return;
    }
    sink_ = sink::file;
    changed_.notify_all();
    while (!stdin_complete_) {
        co_await changed_.wait();
    }
}

std::vector<core::upload> command_input::files() const {
    std::vector<core::upload> all;
    if (script_complete_) {
        all.push_back(
            {core::upload_path("script", with_.exec_id), {}, script_.fd(), script_.size()});
    }
    if (stdin_complete_) {
        all.push_back({core::upload_path("stdin", with_.exec_id), {}, stdin_.fd(), stdin_.size()});
    }
    return all;
}

// -- handed to the runner

void command_input::hand_over(std::string sandbox_id, std::optional<std::uint64_t> accepted) {
    sink_ = sink::runner;
    sandbox_id_ = std::move(sandbox_id);
    accepted_ = accepted;
    script_.drop();
    changed_.notify_all();
}

void command_input::end() {
    sink_ = sink::nowhere;
    state_ = state_ == input_state::open ? input_state::ended : state_;
    script_.drop();
    stdin_.drop();
    changed_.notify_all();
}

asio::awaitable<input_answer> command_input::take_stdin(input_chunk chunk) {
    const auto self = shared_from_this();
    if (waiting_.size() >= most_waiting) {
        throw rpc_error(error_name::too_many_requests,
                        std::to_string(most_waiting) +
                            " pieces of this command's stdin are unanswered; this one was not "
                            "taken");
    }
    const auto mine = std::make_shared<waiting>();
    mine->chunk = std::move(chunk);
    waiting_.push_back(mine);
    struct place { // also if it is cancelled
        command_input& in;
        const std::shared_ptr<waiting>& who;
        place(command_input& input, const std::shared_ptr<waiting>& piece)
            : in(input), who(piece) {}
        place(const place&) = delete;
        place& operator=(const place&) = delete;
        ~place() {
            if (std::erase(in.waiting_, who) != 0) in.changed_.notify_all();
        }
    };
    const place in_line(*this, mine);
    // Into a file they go here, in the order in which they came; the pump keeps to that by itself.
    while (sink_ == sink::undecided || (sink_ == sink::file && waiting_.front() != mine)) {
        co_await changed_.wait();
    }
    if (sink_ == sink::file) {
        co_return collect(stdin_, most_collected, stdin_complete_, mine->chunk);
    }
    if (!pumping_) {
        pumping_ = true;
        asio::co_spawn(
            with_.executor, [self] { return self->pump(); }, asio::detached);
    }
    while (!mine->done) {
        co_await changed_.wait();
    }
    if (mine->refused) {
        throw *mine->refused;
    }
    co_return answer();
}

asio::awaitable<void> command_input::pump() {
    while (!waiting_.empty()) {
        co_await pump_once();
    }
    pumping_ = false;
}

// What has come in one piece by now, as one.
asio::awaitable<void> command_input::pump_once() {
    if (!accepted_ && !over()) {
        core::input_piece nothing; // named: GCC 12 destroys an aggregate in a co_await twice
        co_await send(0, std::move(nothing), std::string());
    }
    std::vector<std::shared_ptr<waiting>> taken{waiting_.front()};
    const std::uint64_t accepted = accepted_.value_or(0);
    input_chunk first = std::move(taken.front()->chunk);
    if (first.offset > accepted && !over()) {
        try {
            refuse_hole(first.offset, accepted);
        } catch (const rpc_error& why) {
            taken.front()->refused = why;
        }
    } else if (!over()) {
        for (std::size_t i = 1; i < waiting_.size(); ++i) {
            const input_chunk& next = waiting_[i]->chunk;
            if (first.eof || next.offset != first.offset + first.bytes.size() ||
                first.bytes.size() + next.bytes.size() > together) {
                break;
            }
            first.bytes += next.bytes;
            first.eof = next.eof;
            taken.push_back(waiting_[i]);
        }
        const std::uint64_t known =
            std::min<std::uint64_t>(accepted - first.offset, first.bytes.size());
        first.bytes.erase(0, known);
        if (!first.bytes.empty() || first.eof) {
            core::input_piece piece;
            piece.eof = first.eof;
            co_await send(accepted, std::move(piece), std::move(first.bytes));
        }
    }
    for (const auto& each : taken) {
        each->done = true;
        std::erase(waiting_, each);
    }
    changed_.notify_all();
}

// Said until it has arrived: the runner takes nothing twice. Without bytes and eof it only asks.
asio::awaitable<void> command_input::send(std::uint64_t offset, core::input_piece piece,
                                          std::string bytes) {
    core::backoff retry(std::chrono::milliseconds(100), std::chrono::milliseconds(5'000));
    asio::steady_timer pause(with_.executor);
    const std::uint64_t end = offset + bytes.size();
    const bool asks = bytes.empty() && !piece.eof;
    std::optional<std::string> aside; // where it lies in the sandbox
    for (bool arrived = false; !arrived && !over();) {
        bool well = true;
        core::input_piece saying = piece;
        if (bytes.size() > core::inline_stdin) {
            if (!aside) {
                aside = co_await put_aside(offset, bytes);
            }
            well = aside.has_value();
            saying.path = aside.value_or("");
        } else {
            saying.bytes = bytes;
        }
        std::string word;
        if (well && !over()) {
            const shim_reply reply = co_await tell(offset, saying);
            well = answered(reply);
            if (well) {
                word = reply.note->text("state");
                take_report(*reply.note);
            }
            // It goes once it is of no use any more, and may be gone where that was not heard.
            if (reply.note && reply.note->text("state") != "unanswered" && word != "busy") {
                aside.reset();
            }
        }
        if (word == "busy" && !over()) { // an earlier piece is not written yet: wait for that
            const core::input_piece nothing;
            const shim_reply waited = co_await tell(accepted_.value_or(0), nothing);
            well = answered(waited);
        }
        arrived =
            well && word != "busy" && (asks || accepted_.value_or(0) >= end || word == "early");
        if (!arrived && !over() && !well) {
            pause.expires_after(retry.next());
            co_await pause.async_wait(asio::use_awaitable);
        }
    }
    if (aside) {
        std::vector<std::string> left{std::move(*aside)};
        co_await remove_uploads(with_.executor, with_.account, sandbox_id_, std::move(left));
    }
}

asio::awaitable<shim_reply> command_input::tell(std::uint64_t offset,
                                                const core::input_piece& piece) {
    std::vector<std::string> argv =
        core::shim_stdin(with_.keeper.path(), with_.exec_id, offset, piece);
    std::string wanted = "stdin";
    co_return co_await with_.keeper.call(sandbox_id_, std::move(argv), std::move(wanted),
                                         written_wait);
}

// Nothing: not now.
asio::awaitable<std::optional<std::string>> command_input::put_aside(std::uint64_t offset,
                                                                     std::string bytes) {
    core::upload what{core::upload_path("stdin-" + std::to_string(offset), with_.exec_id),
                      std::move(bytes)};
    std::optional<std::string> path = what.path;
    const auto put = co_await put_upload(with_.account, sandbox_id_, std::move(what));
    if (!put.has_value()) {
        path.reset();
    }
    co_return path;
}

void command_input::take_report(const core::shim_note& note) {
    const std::string_view word = note.text("state");
    if (word == "open" || word == "eof" || word == "busy" || word == "early") {
        accepted_ = std::max(accepted_.value_or(0), note.number("accepted").value_or(0));
    }
    if (word == "eof") {
        state_ = input_state::eof;
    } else if (word == "closed" || word == "none") {
        state_ = input_state::closed;
    } else if (word == "ended" || word == "lost") {
        state_ = input_state::ended;
    }
}

} // namespace sandboxd::exec
