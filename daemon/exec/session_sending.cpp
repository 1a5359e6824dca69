// How a session's command is sent: what must be there first, the line of the kind that its sandbox
// allows, and the clocks of the platform's own.
#include "core/attached_command.hpp"
#include "core/shim_command.hpp"
#include "exec/attached_line.hpp"
#include "exec/session.hpp"
#include "exec/shim_line.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds platform_cap{1800}; // on one command (P)
constexpr std::chrono::seconds platform_slack{
    30}; // so that our own clock, not the platform's, ends a command
constexpr std::chrono::seconds longest_follow{
    1500}; // the shim leaves before the platform chooses what to end
constexpr std::chrono::minutes input_patience{10}; // for what must be there before a start

} // namespace

void session::make_input(bool stdin_open) {
    input_ = std::make_shared<command_input>(command_input::parts{
        around_.executor, around_.account, around_.shims, id(), around_.state_dir,
        command_.script_size, command_.script_sha256, stdin_open});
}

asio::awaitable<bool> session::arrives(asio::awaitable<void> input) {
    using namespace asio::experimental::awaitable_operators;
    asio::steady_timer patience(around_.executor, input_patience);
    const auto first = co_await (std::move(input) || patience.async_wait(asio::use_awaitable));
    co_return first.index() == 0;
}

asio::awaitable<input_answer> session::take_input(input_chunk chunk) {
    const auto self = shared_from_this();
    if (fsm_.done()) {
        co_return input_answer{0, input_state::ended};
    }
    if (resumed_ && !input_) { // whether its stdin is open is known in its sandbox
        make_input(true);
        if (fsm_.running() || fsm_.ending()) {
            input_->hand_over(sandbox_id(), std::nullopt);
        }
    }
    if (!input_) {
        throw rpc_error(error_name::invalid_params,
                        "this command's input came with its request ('stdin_open' and "
                        "'script_size' of exec.start); nothing was taken");
    }
    co_return co_await input_->take(std::move(chunk));
}

asio::awaitable<void> session::send() {
    for (;;) {
        std::optional<rpc_error> impossible;
        if (input_ && around_.shims.unusable(sandbox_id())) {
            tell_progress({core::life_state::running,
                           "waiting for all of the command's stdin, as its sandbox cannot run the "
                           "shim: it starts when that is there",
                           elapsed()});
            const bool there = co_await arrives(input_->collect_stdin());
            if (!there) {
                impossible.emplace(error_name::invalid_params,
                                   "in a sandbox that cannot run the shim a command's stdin must "
                                   "be there as a whole before it starts, and it was not");
            }
        }
        try {
            line_ = impossible ? nullptr : make_line();
        } catch (const rpc_error& error) {
            impossible = error;
        }
        if (impossible) {
            apply(fsm_.on_not_sent(std::move(*impossible)));
            co_return;
        }
        const std::shared_ptr<line> opening = line_;
        if (!resumed_) {
            record_.attached = opening->attached();
            keep(core::exec_phase::sent);
        }
        opening->when_posted([weak = weak_from_this()](bool out) {
            if (const auto self = weak.lock()) {
                self->posted(out);
            }
        });
        hang_up unless_open(*opening);
        line_opened outcome = co_await opening->open();
        if (line_ != opening) {
            co_return; // its runner was heard of on another way
        }
        if (std::holds_alternative<line_open>(outcome)) {
            unless_open.leave_open();
            keep(core::exec_phase::heard);
            if (input_ && !record_.attached) {
                input_->hand_over(sandbox_id(), resumed_ ? std::optional<std::uint64_t>()
                                                         : std::optional<std::uint64_t>(0));
            }
            apply(fsm_.on_sent());
            co_return;
        }
        const auto* unsuitable = std::get_if<line_unsuitable>(&outcome);
        if (unsuitable == nullptr) {
            apply(std::holds_alternative<cloud::failure>(outcome)
                      ? fsm_.on_send_failed(now(), std::get<cloud::failure>(outcome))
                      : fsm_.on_not_sent(std::get<rpc_error>(outcome)));
            if (!fsm_.done() && !fsm_.ending()) { // it is not out any more, and is tried again
                keep(core::exec_phase::accepted);
            }
            co_return;
        }
        around_.shims.set_unusable(sandbox_id(), unsuitable->why);
        if (fsm_.ending()) {
            apply(fsm_.on_not_sent({error_name::cloud_error, unsuitable->why}));
            co_return;
        }
        line_.reset(); // the next one is of the other kind, and nothing is out before it
        posted(false);
        keep(core::exec_phase::accepted);
    }
}

std::shared_ptr<line> session::make_line() {
    if (resumed_) {
        line_start_ = place_of(*feeds_.front());
        return line_from(line_start_, feeds_.front()->attended());
    }
    if (around_.shims.unusable(sandbox_id())) {
        spool_ = {};
        feeds_.front()->queue_.retain();
        if (around_.marks != nullptr) around_.marks->on_unseen(sandbox_id());
        return std::make_shared<attached_line>(around_.account, sandbox_id(), id(),
                                               with_input(core::build_attached(command_, id())),
                                               files_, server_timeout());
    }
    spool_ = around_.shims.share_of_spool(sandbox_id());
    shim_line::plan plan;
    plan.sandbox_id = sandbox_id();
    plan.exec_id = id();
    plan.digest = record_.digest;
    plan.cwd = command_.cwd;
    plan.longest = longest_connection();
    plan.spool = spool_.bytes();
    plan.board = around_.marks;
    if (plan.board != nullptr) {
        plan.marks = plan.board->marks(sandbox_id());
    }
    plan.run = with_input(core::shim_run(around_.shims.path(), id(), command_, record_.timeout,
                                         plan.longest, around_.shims.take_told(sandbox_id()),
                                         plan.spool, plan.marks));
    plan.same_boot = [weak = weak_from_this()] {
        const auto self = weak.lock();
        return self && self->around_.manager.generation(self->key()) == self->record_.generation;
    };
    plan.files = files_;
    plan.installed = around_.shims.may_be_there(sandbox_id());
    argument_bytes_ = core::kernel_size(plan.run.argv);
    return std::make_shared<shim_line>(around_.executor, around_.account, around_.shims,
                                       std::move(plan));
}

core::prepared_command session::with_input(core::prepared_command built) const {
    if (input_) {
        const std::vector<core::upload> files = input_->files();
        built.uploads.insert(built.uploads.end(), files.begin(), files.end());
    }
    return built;
}

// To a command that was sent before.
std::shared_ptr<line> session::line_from(std::uint64_t pos, bool attended) {
    shim_line::plan plan;
    plan.sandbox_id = sandbox_id();
    plan.exec_id = id();
    plan.digest = record_.digest;
    plan.longest = longest_connection();
    plan.spool = spool_.bytes();
    plan.installed = true;
    plan.from = pos;
    plan.safe = record_.safe;
    plan.attended = attended;
    return std::make_shared<shim_line>(around_.executor, around_.account, around_.shims,
                                       std::move(plan));
}

std::chrono::seconds session::server_timeout() const {
    if (!record_.timeout) {
        return platform_cap;
    }
    return std::min(platform_cap, std::chrono::ceil<std::chrono::seconds>(
                                      std::min(*record_.timeout, longest_timeout)) +
                                      platform_slack);
}

// Idleness is counted by the platform from the last call that finished (D): while a command runs,
// one finishes at least every third of that time.
std::chrono::seconds session::longest_connection() const {
    return std::clamp(around_.manager.server_timeout(key()) / 3, std::chrono::seconds(1),
                      longest_follow);
}

} // namespace sandboxd::exec
