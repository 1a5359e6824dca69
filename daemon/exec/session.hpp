// One command: the shell that carries out what core/exec_fsm decides, and the queue its output
// waits in.
//
// Owned by the registry; it outlives the connection that asked for it, and the coroutines it starts
// keep it alive until they have ended. It holds its sandbox (a lease) from just before it is sent
// until it has ended. Its output is pulled by the one subscriber, at most a window ahead of what
// that has acknowledged; without a subscriber it is counted and dropped.
#pragma once

#include "base/condition.hpp"
#include "core/command.hpp"
#include "core/exec_fsm.hpp"
#include "core/output_queue.hpp"
#include "exec/line.hpp"
#include "exec/shim_keeper.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::exec {

class session;

// Who gets a command's output. Called on the daemon's thread; must not call back into the session
// at once.
class subscriber {
public:
    virtual ~subscriber() = default;
    // There is something to take() or the exit to tell; said again only after the queue was found
    // empty.
    virtual void on_ready(const std::shared_ptr<session>& which) = 0;
    // The sandbox is being brought up for it.
    virtual void on_progress(const core::sandbox_key& key, const sandbox::progress& progress) = 0;
};

struct request {
    std::string exec_id;
    core::sandbox_key key;
    core::command_spec command;
    std::optional<std::chrono::milliseconds> timeout; // of the command itself, from when it is sent
    std::size_t window = 1U << 20;                    // bytes
    sandbox::wanted want;
};

struct cancel_outcome {
    bool confirmed = false; // none of its processes is left
    std::string message;
};

class session : public std::enable_shared_from_this<session> {
public:
    // Throws rpc_error when the request cannot be carried out whatever the cloud says; nothing has
    // run then.
    session(boost::asio::any_io_executor executor, sandbox::manager& manager,
            sandbox::account& account, shim_keeper& shims, core::exec_limits limits,
            request request, std::weak_ptr<subscriber> subscriber);

    void start();
    // Ends the command; completes when it has ended or could not be ended. Sharper signals may
    // follow softer ones.
    boost::asio::awaitable<cancel_outcome> cancel(core::kill_signal signal);
    void stop_with_daemon();
    // The subscriber's connection is gone.
    void detach();
    // The client has been told the exit, or there is none: what the sandbox keeps of the command
    // may go.
    void told();

    // For the subscriber: the next piece of at most `most` bytes, if the window allows.
    std::optional<core::output_chunk> take(std::size_t most);
    // False: more was acknowledged than was sent.
    bool acknowledge(std::uint64_t offset);
    // All output has been taken and the exit stands: nothing follows.
    bool exit_due() const noexcept { return fsm_.done() && queue_.empty(); }
    // Nobody has anything to get from it any more.
    bool settled() const noexcept {
        return fsm_.done() && (queue_.empty() || subscriber_.expired());
    }

    const std::string& id() const noexcept { return request_.exec_id; }
    const core::sandbox_key& key() const noexcept { return request_.key; }
    bool done() const noexcept { return fsm_.done(); }
    const core::exec_exit& exit() const noexcept { return fsm_.exit(); } // once done
    std::string message() const; // the exit's, and what else the client should know; empty: nothing
    std::string_view phase() const noexcept;
    bool recreated() const noexcept {
        return recreated_;
    } // what it ran in had booted anew since the request
    std::uint64_t generation() const noexcept { return generation_; }
    const std::string& sandbox_id() const noexcept {
        return sandbox_id_;
    } // empty before it has one
    std::uint64_t output_bytes() const noexcept { return queue_.total(); }
    std::uint64_t dropped_bytes() const noexcept { return queue_.dropped(); }
    std::chrono::milliseconds elapsed() const; // since the request; stands still once done
    std::chrono::steady_clock::time_point done_at() const noexcept { return done_at_; }

private:
    void apply(const core::exec_fsm::steps& steps);
    void perform(const core::exec_fsm::step& step);
    void finish();
    void spawn(boost::asio::awaitable<void> coroutine);
    void after(boost::asio::steady_timer& timer, std::chrono::milliseconds delay,
               void (session::*then)());

    boost::asio::awaitable<void> acquire();
    boost::asio::awaitable<void> send();
    boost::asio::awaitable<void> read();
    boost::asio::awaitable<void> kill();
    boost::asio::awaitable<kill_outcome> kill_all(core::kill_signal signal);
    std::shared_ptr<line> make_line();
    void take_event(const line_event& event);
    void ready();
    void tell_progress(const sandbox::progress& news);

    void waited() { apply(fsm_.on_waited()); }
    void lingered() { apply(fsm_.on_lingered()); }
    void deadline() { apply(fsm_.on_deadline()); }
    std::chrono::seconds server_timeout() const;
    std::chrono::seconds longest_connection() const;
    static std::chrono::milliseconds now();

    boost::asio::any_io_executor executor_;
    sandbox::manager& manager_;
    sandbox::account& account_;
    shim_keeper& shims_;
    request request_;
    std::weak_ptr<subscriber> subscriber_;

    core::exec_fsm fsm_;
    core::output_queue queue_;
    sandbox::lease lease_;
    std::shared_ptr<line>
        line_; // to the command; made when it is first sent, kept to end what may still run

    std::vector<std::weak_ptr<boost::asio::cancellation_signal>>
        coroutines_; // one each, to stop it by
    boost::asio::steady_timer pause_;
    boost::asio::steady_timer deadline_;
    boost::asio::steady_timer linger_;
    condition room_;  // the queue may have room again
    condition ended_; // the exit stands

    std::uint64_t first_generation_ = 0; // when the request came
    std::uint64_t generation_ = 0;
    bool recreated_ = false;
    bool state_lost_ = false;
    std::string sandbox_id_;
    std::chrono::steady_clock::time_point asked_at_;
    std::chrono::steady_clock::time_point done_at_;
};

} // namespace sandboxd::exec
