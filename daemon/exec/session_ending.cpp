// How a session's command is ended before its time: killed by its line, by its sandbox if need be,
// and settled where it may never have begun.
#include "core/backoff.hpp"
#include "exec/attached_line.hpp"
#include "exec/outcome.hpp"
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
constexpr std::chrono::seconds look_patience{5};  // for how it had ended before that
constexpr std::chrono::seconds stop_patience{60}; // for a sandbox to stop, to end a command in it

} // namespace

asio::awaitable<void> session::kill() {
    kill_outcome outcome = co_await kill_all(fsm_.signal());
    if (outcome.unkillable && around_.stop_if_unkillable) {
        const bool stopped = co_await stop_sandbox();
        if (stopped) {
            if (is_known()) { // else somebody has ended the sandbox meanwhile
                stopped_because_ = "its processes could not be ended from inside the sandbox (" +
                                   outcome.why + "), so the sandbox was stopped";
            }
            outcome.why.clear();
            outcome.reach = core::kill_reach::with_sandbox;
        }
    }
    apply(fsm_.on_killed(outcome.why.empty(), outcome.why, outcome.reach));
}

bool session::is_known() const {
    return around_.manager.is_known(key(), sandbox_id(), record_.generation);
}

// A connection that fails says nothing of the command, and the next one may not.
asio::awaitable<kill_outcome> session::kill_until_reached(std::shared_ptr<line> ending,
                                                          core::kill_signal signal) {
    const auto until = std::chrono::steady_clock::now() + fsm_.kill_patience();
    core::backoff retry(std::chrono::milliseconds(100), std::chrono::milliseconds(1'000));
    asio::steady_timer pause(around_.executor);
    for (;;) {
        kill_outcome outcome = co_await ending->kill(signal);
        if (outcome.unknown_sandbox && !is_known()) {
            co_return kill_outcome{{}, core::kill_reach::with_sandbox}; // we know that it is gone
        }
        const bool not_reached = !outcome.why.empty() && !outcome.unkillable;
        pause.expires_after(retry.next());
        if (!not_reached || pause.expiry() >= until) {
            co_return outcome;
        }
        co_await pause.async_wait(asio::use_awaitable);
    }
}

// How it ended, of its runner; and what is missing of its output, by a connection of our own: the
// one there is may have gone silent, or wait for its next try.
asio::awaitable<void> session::look() {
    read_anew();
    apply(fsm_.on_found(co_await how_it_ended()));
}

asio::awaitable<std::optional<core::exec_exit>> session::how_it_ended() {
    using namespace asio::experimental::awaitable_operators;
    struct found { // as asio's operator|| would take the optional apart
        std::optional<core::exec_exit> how;
    };
    const auto asking = [this]() -> asio::awaitable<found> {
        core::backoff retry(std::chrono::milliseconds(100), std::chrono::milliseconds(1'000));
        asio::steady_timer pause(around_.executor);
        for (;;) {
            found answer;
            answer.how =
                co_await ask_outcome(around_.account, sandbox_id(), around_.shims.path(), id());
            if (answer.how) {
                co_return answer;
            }
            pause.expires_after(retry.next());
            co_await pause.async_wait(asio::use_awaitable);
        }
    };
    asio::steady_timer patience(around_.executor, look_patience);
    auto first = co_await (asking() || patience.async_wait(asio::use_awaitable));
    if (auto* const answer = std::get_if<found>(&first)) {
        co_return std::move(answer->how);
    }
    co_return std::nullopt;
}

asio::awaitable<kill_outcome> session::kill_all(core::kill_signal signal) {
    using namespace asio::experimental::awaitable_operators;
    if (!line_ && sent() && !sandbox_id().empty()) { // by an earlier daemon
        if (record_.attached) {
            line_ = std::make_shared<attached_line>(around_.account, sandbox_id(), id());
        } else {
            line_ = line_from(0, false);
        }
    }
    const std::shared_ptr<line> ending = line_;
    if (!ending) { // nothing was ever sent
        co_return kill_outcome{{}, core::kill_reach::before_start};
    }
    asio::steady_timer patience(around_.executor, kill_patience);
    const auto first =
        co_await (kill_until_reached(ending, signal) || patience.async_wait(asio::use_awaitable));
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
        // One whose end is not known for sure may still be running, and what it left in the
        // background is: then this is the way to end it.
        const core::exec_exit& exit = fsm_.exit();
        const bool lives_on = exit.background && is_known();
        if (exit.reason != core::exit_reason::lost && !exit.kill_unconfirmed && !lives_on) {
            co_return cancel_outcome{true, {}};
        }
        const kill_outcome outcome = co_await kill_all(signal);
        const std::string& why = outcome.why;
        const bool confirmed = why.empty();
        if (confirmed && outcome.reach == core::kill_reach::after_end && !fsm_.certain()) {
            std::optional<core::exec_exit> how = co_await how_it_ended();
            if (how) {
                how->more_output = true;
                apply(fsm_.on_verdict(std::move(*how)));
            }
        } else if (confirmed) {
            apply(fsm_.on_late_kill());
        }
        co_return cancel_outcome{
            confirmed, confirmed ? why : "its processes could not be ended for sure: " + why};
    }
    // The shim can end what has not begun yet, by its id.
    apply(fsm_.on_cancel(signal, !out_ || !around_.shims.unusable(sandbox_id())));
    while (!fsm_.done()) {
        co_await moved_.wait();
    }
    const bool confirmed = !fsm_.exit().kill_unconfirmed;
    co_return cancel_outcome{confirmed, confirmed ? stopped_because_ : fsm_.exit().message};
}

// It was sent, and nothing in the sandbox knows of it. It may still be on its way; claimed as
// cancelled, it cannot run any more, and then it is known not to have.
asio::awaitable<void> session::settle(core::exec_exit exit) {
    const bool too_long = line_->would_not_start() && argument_bytes_ > core::least_arguments;
    const kill_outcome outcome = co_await kill_all(core::kill_signal::kill);
    if (outcome.why.empty() && outcome.reach == core::kill_reach::before_start) {
        error_name name = error_name::cloud_unreachable;
        std::string what = "the command was sent, and the sandbox did not get it";
        if (doubtful_) {
            what = "the daemon died as it sent the command, and the sandbox did not get it";
        } else if (too_long) {
            name = error_name::argument_too_long;
            what = "the platform did not start the command, whose arguments and environment take " +
                   std::to_string(argument_bytes_) + " bytes: more than its kernel takes";
        }
        exit = {};
        exit.ran = core::started::no;
        exit.message = what + "; it has not run";
        exit.error.emplace(name, exit.message);
    }
    apply(fsm_.on_verdict(std::move(exit)));
}

} // namespace sandboxd::exec
