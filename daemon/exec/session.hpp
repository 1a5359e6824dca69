// One command: the shell that carries out what core/exec_fsm decides.
//
// Owned by the registry; it outlives the connections that ask for it and, by its record in the
// journal, the daemon. The coroutines it starts keep it alive until they have ended. It holds its
// sandbox (a lease) from just before it is sent until it has ended and nobody reads it any more.
//
// Its output goes into feeds, one a client. The first one is read from the moment the command is
// sent: its client's window is what holds the command up. When it leaves, the next one takes its
// place. Without any client the first one is read on, so that the end is known, and the sandbox
// keeps the output for whoever comes. Any other feed follows the command through a connection of
// its own. The sandbox may forget what all clients have, so one that is far behind the first holds
// up the command when the sandbox can keep no more; not for ever, if it does not read at all.
#pragma once

#include "base/condition.hpp"
#include "core/command.hpp"
#include "core/exec_fsm.hpp"
#include "core/exec_record.hpp"
#include "core/mark_board.hpp"
#include "exec/feed.hpp"
#include "exec/input.hpp"
#include "exec/line.hpp"
#include "exec/shim_keeper.hpp"
#include "exec/upload.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::exec {

struct request {
    std::string exec_id;
    core::sandbox_key key;
    core::command_spec command;
    std::optional<std::chrono::milliseconds> timeout; // of the command itself, from when it is sent
    sandbox::wanted want;
    // Of the sandbox, the only one that it may run in; nothing: whichever runs, or can be started.
    std::optional<std::uint64_t> generation;
    // exec_record::asked_in, as an earlier daemon has kept it; nothing: it is asked for now.
    std::optional<std::uint64_t> asked_in;
};

// Where a client stands with a command.
struct view_request {
    std::weak_ptr<subscriber> to;
    std::uint64_t from = 0;         // position of the first byte it wants
    std::size_t window = 1U << 20;  // bytes
    std::shared_ptr<feed> replaces; // the same client's, of before
    bool owner = false;             // it asked for the command, and does not only watch it
};

struct cancel_outcome {
    bool confirmed = false; // none of its processes is left
    std::string message;
};

// What every session uses; outlives them all.
struct surroundings {
    boost::asio::any_io_executor executor;
    sandbox::manager& manager;
    sandbox::account& account;
    shim_keeper& shims;
    core::exec_limits limits;
    std::filesystem::path state_dir; // for input that comes in pieces
    bool stop_if_unkillable = true;  // the sandbox, when the processes in it cannot be ended
    std::function<void(const core::exec_record&)> keep; // in the journal
    core::mark_board* marks = nullptr; // asked at each start of a command, if there is one
};

class session : public std::enable_shared_from_this<session> {
public:
    // A new command. Throws rpc_error when the request cannot be carried out whatever the cloud
    // says; nothing has run then.
    session(surroundings& around, request request);
    // One of an earlier daemon.
    session(surroundings& around, core::exec_record record);

    void start();  // a new one
    void resume(); // an earlier one that has not ended
    // Output from there on, then the exit, go to that subscriber. Throws rpc_error: invalid_params
    // beyond the end, exec_id_in_use where only one client can be attached.
    std::shared_ptr<feed> attach(view_request view);
    // Ends the command; completes when it has ended or could not be ended. Sharper signals may
    // follow softer ones.
    boost::asio::awaitable<cancel_outcome> cancel(core::kill_signal signal);

    // A piece of its script or stdin; see exec/input.hpp.
    boost::asio::awaitable<input_answer> take_input(input_chunk chunk);
    // A client has got everything, the exit too: what the sandbox keeps of it may go, if that is
    // the one who asked for the command, and once all who read have it. What a mere watcher has got
    // may still be wanted.
    void acknowledged_end();

    // For its feeds.
    void acknowledged(const feed& by);
    void told(const std::shared_ptr<feed>& to);
    void detached(const std::shared_ptr<feed>& which);

    const core::exec_record& record() const noexcept { return record_; }
    const std::string& id() const noexcept { return record_.exec_id; }
    const core::sandbox_key& key() const noexcept { return record_.key; }
    bool done() const noexcept { return fsm_.done(); }
    // An earlier daemon accepted it, and died before it sent it.
    bool never_sent() const noexcept { return resumed_ && !sent(); }
    // Nothing is going on that needs more than its record.
    bool settled() const noexcept;
    const core::exec_exit& exit() const noexcept { return fsm_.exit(); } // once done
    std::string message() const; // the exit's, and what else the client should know; empty: nothing
    std::string_view phase() const noexcept;
    // What it ran in had booted anew since the request.
    bool recreated() const noexcept { return core::is_recreated(record_); }
    // And is a new sandbox: nothing of the one before is in it.
    bool created() const noexcept { return record_.created; }
    std::uint64_t generation() const noexcept { return record_.generation; }
    const std::string& sandbox_id() const noexcept {
        return record_.sandbox_id;
    }                                          // empty before it has one
    std::uint64_t output_end() const noexcept; // position after the last byte known of
    std::chrono::milliseconds elapsed() const; // since the request; stands still once done

private:
    void apply(const core::exec_fsm::steps& steps);
    void perform(const core::exec_fsm::step& step);
    void arm(std::chrono::milliseconds extra);
    boost::asio::awaitable<void> acquire();
    boost::asio::awaitable<sandbox::lease> hold_sandbox(); // throws rpc_error
    boost::asio::awaitable<bool> acquire_again(); // false: its own sandbox does not run any more
    void finish();
    void end_in_time_what_was_lost();
    void keep(core::exec_phase phase);
    bool sent() const noexcept { return record_.phase != core::exec_phase::accepted; }
    void tell_progress(const sandbox::progress& news);
    std::weak_ptr<boost::asio::cancellation_signal> spawn(boost::asio::awaitable<void> coroutine);
    void carry_out(boost::asio::awaitable<void> coroutine); // until the command has ended
    void after(boost::asio::steady_timer& timer, std::chrono::milliseconds delay,
               void (session::*then)());
    void waited() { apply(fsm_.on_waited()); }
    void lingered() { apply(fsm_.on_lingered()); }
    void deadline() { apply(fsm_.on_deadline()); }
    void posted(bool out);
    static std::chrono::milliseconds now();

    // session_sending.cpp
    void make_input(bool stdin_open);
    boost::asio::awaitable<bool> arrives(boost::asio::awaitable<void> input); // in time
    boost::asio::awaitable<void> send();
    std::shared_ptr<line> make_line(); // of the kind that its sandbox allows
    core::prepared_command with_input(core::prepared_command built) const;
    std::shared_ptr<line> line_from(std::uint64_t pos, bool attended);
    std::chrono::seconds server_timeout() const;
    std::chrono::seconds longest_connection() const;

    // session_end.cpp
    void note_end();
    void correct();
    bool keeps(const feed& which) const noexcept; // what it lacks must not be forgotten
    bool being_read() const noexcept;
    void hold_back(std::uint64_t from, std::chrono::milliseconds patience);
    void hold_back_no_more();
    void forget_if_had();
    void forget_in_time();
    void forget();

    // session_ending.cpp
    bool is_known() const; // the boot of the sandbox that it ran in
    boost::asio::awaitable<void> kill();
    boost::asio::awaitable<kill_outcome> kill_all(core::kill_signal signal);
    boost::asio::awaitable<kill_outcome> kill_until_reached(std::shared_ptr<line> ending,
                                                            core::kill_signal signal);
    boost::asio::awaitable<void> look();
    boost::asio::awaitable<std::optional<core::exec_exit>> how_it_ended();
    boost::asio::awaitable<bool> stop_sandbox();
    boost::asio::awaitable<void> settle(core::exec_exit exit);

    // session_feeds.cpp
    std::shared_ptr<feed> add_feed(view_request view);
    void check_position(std::uint64_t from) const; // throws invalid_params
    void move_first(view_request view);
    bool promote_next();
    void read_first();
    void read_anew();
    void follow_soon(const std::shared_ptr<feed>& which);
    std::uint64_t place_of(const feed& which) const noexcept;
    void stop_reading(feed& which);
    boost::asio::awaitable<void> follow(std::shared_ptr<feed> into);
    boost::asio::awaitable<void> read(std::shared_ptr<feed> into);
    boost::asio::awaitable<bool> wait_for_room(feed& into, line& from);
    bool may_be_overdue(const feed& which) const noexcept;
    void take_event(feed& into, line_event event);
    void end_feed(feed& which);
    void cut(feed& which);
    void end_feeds();
    void cut_tails();
    bool feeds_busy() const noexcept;
    void let_go_if_idle();

    // Of a time-out, whatever was asked for: what every clock can hold.
    static constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24 * 365);

    surroundings& around_;
    core::exec_record record_;
    core::command_spec command_; // until it has ended
    sandbox::wanted want_;
    std::optional<std::uint64_t> only_generation_; // see request
    core::exec_fsm fsm_;
    bool resumed_ = false;                     // an earlier daemon sent it
    bool doubtful_ = false;                    // ... or may not have
    std::shared_ptr<command_input> input_;     // null: none comes in pieces, as far as is known
    std::shared_ptr<start_files> files_;       // of a new one
    std::vector<std::shared_ptr<feed>> feeds_; // the first one first
    sandbox::lease lease_;
    std::shared_ptr<line>
        line_; // to the command; made when it is first sent, kept to end what may still run
    std::uint64_t line_start_ = 0;   // position that it was opened for
    std::uint64_t seen_end_ = 0;     // position after the last byte that has come
    std::size_t argument_bytes_ = 0; // that it was sent with, as the kernel counts

    std::vector<std::weak_ptr<boost::asio::cancellation_signal>>
        coroutines_; // that carry out the machine's steps: one each, to stop it by
    boost::asio::steady_timer pause_;
    boost::asio::steady_timer deadline_;
    boost::asio::steady_timer linger_;
    boost::asio::steady_timer forget_;
    boost::asio::steady_timer come_back_;
    // Who has got no further may come back in a moment: the sandbox keeps what follows.
    std::optional<std::uint64_t> held_back_;
    condition moved_; // it has begun or ended

    spool_share spool_;
    bool out_ = false;        // it is on its way, or may have arrived
    bool certain_ = true;     // nothing that was sent can still arrive late
    bool told_owner_ = false; // its end
    bool owner_has_all_ = false;

    bool state_lost_ = false;
    bool cut_short_ = false; // somebody's output, since the command was ended on demand
    bool altered_ = false;   // output without the shim holds characters that stand for lost bytes
    std::string stopped_because_; // its sandbox, to end it
    std::chrono::steady_clock::time_point asked_at_;
};

} // namespace sandboxd::exec
