// How a session's command is ended before its time: killed by its line, by its sandbox if need be,
// and settled where it may never have begun.
#include "exec/attached_line.hpp"
#include "exec/session.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds kill_patience{10}; // for the command that kills
constexpr std::chrono::seconds stop_patience{60}; // for a sandbox to stop, to end a command in it

} // namespace

asio::awaitable<void> session::kill() {
    kill_outcome outcome = co_await kill_all(fsm_.signal());
    if (outcome.unkillable && around_.stop_if_unkillable) {
        const bool stopped = co_await stop_sandbox();
        if (stopped) {
            stopped_because_ = "its processes could not be ended from inside the sandbox (" +
                               outcome.why + "), so the sandbox was stopped";
            outcome.why.clear();
            outcome.reach = core::kill_reach::for_good;
        }
    }
    apply(fsm_.on_killed(outcome.why.empty(), outcome.why, outcome.reach));
}

asio::awaitable<kill_outcome> session::kill_all(core::kill_signal signal) {
    using namespace asio::experimental::awaitable_operators;
    if (!line_ && !sandbox_id().empty()) { // it ended before this daemon was started
        if (record_.attached) {
            line_ = std::make_shared<attached_line>(around_.account, sandbox_id(), id(),
                                                    core::prepared_command{}, server_timeout());
        } else {
            line_ = line_from(0, false);
        }
    }
    const std::shared_ptr<line> ending = line_;
    if (!ending) {
        co_return kill_outcome{}; // nothing was ever sent
    }
    asio::steady_timer patience(around_.executor, kill_patience);
    const auto first = co_await (ending->kill(signal) || patience.async_wait(asio::use_awaitable));
    kill_outcome outcome{"the platform did not answer in time"};
    if (first.index() == 0) {
        outcome = std::get<0>(first);
    }
    if (!outcome.why.empty()) {
        spdlog::warn("exec {}: its processes could not be ended for sure: {}", id(), outcome.why);
    }
    co_return outcome;
}

asio::awaitable<bool> session::stop_sandbox() {
    using namespace asio::experimental::awaitable_operators;
    spdlog::warn("exec {}: stopping sandbox {}, as its processes cannot be ended otherwise", id(),
                 sandbox_id());
    sandbox::selector which{key(), {}};
    asio::steady_timer patience(around_.executor, stop_patience);
    try {
        const auto first = co_await (around_.manager.stop(std::move(which), true) ||
                                     patience.async_wait(asio::use_awaitable));
        co_return first.index() == 0;
    } catch (const rpc_error& problem) {
        spdlog::warn("sandbox {} could not be stopped: {}", sandbox_id(), problem.what());
    }
    co_return false;
}

asio::awaitable<cancel_outcome> session::cancel(core::kill_signal signal) {
    const auto self = shared_from_this();
    if (fsm_.done()) {
        // One whose end is not known for sure may still be running: then this is the way to end it.
        if (fsm_.exit().reason != core::exit_reason::lost && !fsm_.exit().kill_unconfirmed) {
            co_return cancel_outcome{true, {}};
        }
        const kill_outcome outcome = co_await kill_all(signal);
        const std::string& why = outcome.why;
        const bool confirmed = why.empty();
        co_return cancel_outcome{
            confirmed, confirmed ? why : "its processes could not be ended for sure: " + why};
    }
    // The shim can end what has not begun yet, by its id.
    apply(fsm_.on_cancel(signal, !around_.shims.unusable(sandbox_id())));
    while (!fsm_.done()) {
        co_await moved_.wait();
    }
    const bool confirmed = !fsm_.exit().kill_unconfirmed;
    co_return cancel_outcome{confirmed, confirmed ? stopped_because_ : fsm_.exit().message};
}

// The last daemon died as it sent the command, and nothing in the sandbox knows of it. It may still
// be on its way; claimed as cancelled, it cannot run any more, and then it is known not to have.
asio::awaitable<void> session::settle(core::exec_exit exit) {
    const kill_outcome outcome = co_await kill_all(core::kill_signal::kill);
    if (outcome.why.empty() && outcome.reach == core::kill_reach::before_start) {
        exit = {};
        exit.ran = core::started::no;
        exit.message = "the daemon died as it sent the command, and the sandbox did not get it; it "
                       "has not run";
        exit.error.emplace(error_name::cloud_unreachable, exit.message);
    }
    apply(fsm_.on_verdict(std::move(exit)));
}

} // namespace sandboxd::exec
