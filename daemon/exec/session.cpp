#include "exec/session.hpp"

#include "base/cancellation.hpp"
#include "core/attached_command.hpp"
#include "core/shim_command.hpp"
#include "exec/attached_line.hpp"
#include "exec/shim_line.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds platform_cap{1800}; // on one command (P)
constexpr std::chrono::seconds platform_slack{
    30}; // so that our own clock, not the platform's, ends a command
constexpr std::chrono::seconds kill_patience{10}; // for the command that kills
constexpr std::chrono::milliseconds runner_slack{300};
constexpr std::chrono::milliseconds no_slack{0};
constexpr std::chrono::seconds longest_follow{
    1500}; // the shim leaves before the platform chooses what to end
constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24 * 365);

std::chrono::milliseconds since(std::chrono::steady_clock::time_point then,
                                std::chrono::steady_clock::time_point until) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(until - then);
}

// Asio ends a coroutine that has never waited with a wait of its own, and a cancel that came from
// inside the coroutine would be thrown there, out of io_context::run. So past its end the coroutine
// can no longer be cancelled.
asio::awaitable<void> ending_well(asio::awaitable<void> coroutine) {
    std::exception_ptr problem;
    try {
        co_await std::move(coroutine);
    } catch (...) {
        problem = std::current_exception();
    }
    co_await asio::this_coro::throw_if_cancelled(false);
    if (problem) {
        std::rethrow_exception(problem);
    }
}

// However a coroutine ends, the connection goes with it, not when the session is forgotten.
class hang_up {
public:
    explicit hang_up(line& which) : line_(&which) {}
    hang_up(const hang_up&) = delete;
    hang_up& operator=(const hang_up&) = delete;
    ~hang_up() {
        if (line_ != nullptr) {
            line_->hang_up();
        }
    }
    void leave_open() noexcept { line_ = nullptr; }

private:
    line* line_;
};

} // namespace

session::session(asio::any_io_executor executor, sandbox::manager& manager,
                 sandbox::account& account, shim_keeper& shims, core::exec_limits limits,
                 request request, std::weak_ptr<subscriber> subscriber)
    : executor_(executor), manager_(manager), account_(account), shims_(shims),
      request_(std::move(request)), subscriber_(std::move(subscriber)), fsm_(limits),
      queue_(request_.window), pause_(executor), deadline_(executor), linger_(executor),
      room_(executor), ended_(executor), first_generation_(manager.generation(request_.key)),
      asked_at_(std::chrono::steady_clock::now()) {
    core::check_spec(request_.command);
}

void session::start() {
    apply(fsm_.begin());
}

std::chrono::milliseconds session::now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
}

std::chrono::milliseconds session::elapsed() const {
    return since(asked_at_, fsm_.done() ? done_at_ : std::chrono::steady_clock::now());
}

std::string_view session::phase() const noexcept {
    if (fsm_.done()) {
        return "done";
    }
    if (fsm_.ending()) {
        return "ending";
    }
    if (fsm_.running()) {
        return "running";
    }
    return fsm_.acquiring() ? "queued" : "starting";
}

void session::apply(const core::exec_fsm::steps& steps) {
    for (const core::exec_fsm::step& step : steps) {
        perform(step);
    }
}

void session::perform(const core::exec_fsm::step& step) {
    using action = core::exec_fsm::action;
    switch (step.what) {
    case action::release_bad:
        manager_.distrust(request_.key);
        lease_.release();
        deadline_.cancel();
        [[fallthrough]];
    case action::acquire:
        spawn(acquire());
        break;
    case action::send:
        spawn(send());
        break;
    case action::read:
        spawn(read());
        break;
    case action::kill:
        spawn(kill());
        break;
    case action::wait:
        tell_progress({core::life_state::running, fsm_.waiting_for(), elapsed()});
        after(pause_, step.delay, &session::waited);
        break;
    case action::linger:
        after(linger_, step.delay, &session::lingered);
        break;
    case action::arm:
        if (request_.timeout) {
            // The runner in the sandbox keeps the same time; ours is for when it cannot say so.
            const bool runner = !shims_.unusable(sandbox_id_);
            after(deadline_,
                  std::min(*request_.timeout, longest_timeout) + (runner ? runner_slack : no_slack),
                  &session::deadline);
        }
        break;
    case action::finish:
        finish();
        break;
    }
}

// Each coroutine keeps the session alive and ends by telling the machine something, or silently
// when it is cancelled.
void session::spawn(asio::awaitable<void> coroutine) {
    // A signal of its own, since one coroutine starts the next before it has quite ended.
    const auto stop = std::make_shared<asio::cancellation_signal>();
    std::erase_if(coroutines_, [](const auto& each) { return each.expired(); });
    coroutines_.push_back(stop);
    asio::co_spawn(executor_, ending_well(std::move(coroutine)),
                   asio::bind_cancellation_slot(
                       stop->slot(), [self = shared_from_this(), stop](std::exception_ptr problem) {
                           if (is_cancellation(problem)) {
                               return;
                           }
                           try {
                               std::rethrow_exception(problem);
                           } catch (const std::exception& unexpected) {
                               spdlog::error("exec {}: {}", self->id(), unexpected.what());
                               self->apply(self->fsm_.on_internal_error(unexpected.what()));
                           }
                       }));
}

void session::after(asio::steady_timer& timer, std::chrono::milliseconds delay,
                    void (session::*then)()) {
    timer.expires_after(delay);
    timer.async_wait([self = shared_from_this(), then](boost::system::error_code error) {
        if (!error) {
            (self.get()->*then)();
        }
    });
}

asio::awaitable<void> session::acquire() {
    const auto progress = [self = shared_from_this()](const sandbox::progress& news) {
        self->tell_progress(news);
    };
    std::optional<rpc_error> refused;
    try {
        lease_ = co_await manager_.acquire(request_.key, request_.want, request_.exec_id, progress);
    } catch (const rpc_error& error) {
        refused = error;
    }
    if (refused) {
        apply(fsm_.on_not_acquired(std::move(*refused)));
        co_return;
    }
    generation_ = lease_.record().generation;
    sandbox_id_ = lease_.record().sandbox_id;
    recreated_ = recreated_ || (first_generation_ != 0 && generation_ != first_generation_);
    state_lost_ = state_lost_ || lease_.how().state_lost;
    apply(fsm_.on_acquired());
    if (fsm_.done()) {
        lease_.release(); // cancelled at the last moment
    }
}

asio::awaitable<void> session::send() {
    for (;;) {
        std::optional<rpc_error> impossible;
        try {
            line_ = make_line();
        } catch (const rpc_error& error) {
            impossible = error;
        }
        if (impossible) {
            apply(fsm_.on_not_sent(std::move(*impossible)));
            co_return;
        }
        const std::shared_ptr<line> opening = line_;
        hang_up unless_open(*opening);
        line_opened outcome = co_await opening->open();
        if (std::holds_alternative<line_open>(outcome)) {
            unless_open.leave_open();
            apply(fsm_.on_sent());
            co_return;
        }
        if (const auto* failure = std::get_if<cloud::failure>(&outcome)) {
            apply(fsm_.on_send_failed(now(), *failure));
            co_return;
        }
        if (auto* error = std::get_if<rpc_error>(&outcome)) {
            apply(fsm_.on_not_sent(std::move(*error)));
            co_return;
        }
        shims_.set_unusable(
            sandbox_id_,
            std::get<line_unsuitable>(outcome).why); // the next line is of the other kind
    }
}

std::shared_ptr<line> session::make_line() {
    if (shims_.unusable(sandbox_id_)) {
        return std::make_shared<attached_line>(account_, sandbox_id_, id(),
                                               core::build_attached(request_.command, id()),
                                               server_timeout());
    }
    shim_line::plan plan;
    plan.sandbox_id = sandbox_id_;
    plan.exec_id = id();
    plan.digest = core::command_digest(request_.command, request_.timeout);
    plan.longest = longest_connection();
    plan.run = core::shim_run(shims_.path(), id(), request_.command, request_.timeout, plan.longest,
                              shims_.take_told(sandbox_id_));
    plan.installed = shims_.installed(sandbox_id_) || !lease_.how().created;
    return std::make_shared<shim_line>(executor_, account_, shims_, std::move(plan));
}

std::chrono::seconds session::server_timeout() const {
    if (!request_.timeout) {
        return platform_cap;
    }
    return std::min(platform_cap, std::chrono::ceil<std::chrono::seconds>(
                                      std::min(*request_.timeout, longest_timeout)) +
                                      platform_slack);
}

// Idleness is counted by the platform from the last call that finished (D): while a command runs,
// one finishes at least every third of that time.
std::chrono::seconds session::longest_connection() const {
    return std::clamp(manager_.server_timeout() / 3, std::chrono::seconds(1), longest_follow);
}

asio::awaitable<void> session::read() {
    const std::shared_ptr<line> reading = line_;
    const hang_up at_the_end(*reading);
    while (!fsm_.done()) {
        while (queue_.full()) {
            co_await room_.wait();
        }
        const line_event event = co_await reading->next();
        take_event(event);
        if (!std::holds_alternative<line_output>(event)) {
            co_return;
        }
    }
}

void session::take_event(const line_event& event) {
    if (const auto* output = std::get_if<line_output>(&event)) {
        const auto stream = output->is_stderr ? core::output_stream::err : core::output_stream::out;
        const bool idle = !queue_.can_take();
        if (output->offset) {
            queue_.skip_to(stream, *output->offset);
        }
        queue_.push(stream, output->bytes);
        apply(fsm_.on_output());
        if (idle) {
            ready();
        }
        if (subscriber_.expired()) {
            line_->acknowledged(queue_.total()); // nobody will ask for it
        }
    } else if (const auto* verdict = std::get_if<core::exec_exit>(&event)) {
        apply(fsm_.on_verdict(*verdict));
    } else if (const auto* exited = std::get_if<cloud::exec_exited>(&event)) {
        apply(fsm_.on_exited(exited->returncode));
    } else if (const auto* refused = std::get_if<cloud::exec_refused>(&event)) {
        apply(fsm_.on_refused(refused->message));
    } else if (const auto* cut = std::get_if<cloud::exec_cut>(&event)) {
        apply(fsm_.on_cut(cut->why));
    }
}

asio::awaitable<void> session::kill() {
    const kill_outcome outcome = co_await kill_all(fsm_.signal());
    apply(fsm_.on_killed(outcome.why.empty(), outcome.why, outcome.reach));
}

asio::awaitable<kill_outcome> session::kill_all(core::kill_signal signal) {
    using namespace asio::experimental::awaitable_operators;
    const std::shared_ptr<line> ending = line_;
    if (!ending) {
        co_return kill_outcome{}; // nothing was ever sent
    }
    asio::steady_timer patience(executor_, kill_patience);
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

void session::finish() {
    done_at_ = std::chrono::steady_clock::now();
    for (const auto& each : coroutines_) {
        if (const auto stop = each.lock()) {
            stop->emit(asio::cancellation_type::terminal);
        }
    }
    pause_.cancel();
    deadline_.cancel();
    linger_.cancel();
    lease_.release();
    request_.command = {}; // an ended command is remembered for a while, its input need not be
    ended_.notify_all();
    const core::exec_exit& exit = fsm_.exit();
    spdlog::info("exec {} in {}: {} {} after {} ms, {} bytes{}{}", id(), describe(key()),
                 core::to_string(exit.reason),
                 exit.returncode ? std::to_string(*exit.returncode) : "-", elapsed().count(),
                 output_bytes(), exit.message.empty() ? "" : ": ", exit.message);
    ready();
}

std::string session::message() const {
    std::string text = fsm_.exit().message;
    if (state_lost_) {
        text += text.empty() ? "" : "; ";
        text += "the sandbox known before is gone, with its files: this ran in a new, empty one";
    }
    return text;
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
    apply(fsm_.on_cancel(signal));
    while (!fsm_.done()) {
        co_await ended_.wait();
    }
    const bool confirmed = !fsm_.exit().kill_unconfirmed;
    co_return cancel_outcome{confirmed, confirmed ? std::string() : fsm_.exit().message};
}

void session::stop_with_daemon() {
    apply(fsm_.on_daemon_stopping());
}

void session::detach() {
    subscriber_.reset();
    queue_.abandon();
    room_.notify_all();
    if (fsm_.done()) {
        told();
    }
}

void session::told() {
    if (line_ && line_->forgettable()) {
        shims_.told(sandbox_id_, id());
    }
}

std::optional<core::output_chunk> session::take(std::size_t most) {
    std::optional<core::output_chunk> chunk = queue_.take(most);
    if (chunk && !queue_.full()) {
        room_.notify_all();
    }
    return chunk;
}

bool session::acknowledge(std::uint64_t offset) {
    const bool closed = !queue_.empty() && !queue_.can_take();
    if (!queue_.acknowledge(offset)) {
        return false;
    }
    if (line_) {
        line_->acknowledged(offset);
    }
    if (closed && queue_.can_take()) {
        ready();
    }
    return true;
}

void session::tell_progress(const sandbox::progress& news) {
    if (const std::shared_ptr<subscriber> listener = subscriber_.lock()) {
        listener->on_progress(key(), news);
    }
}

void session::ready() {
    if (const std::shared_ptr<subscriber> listener = subscriber_.lock()) {
        listener->on_ready(shared_from_this());
    }
}

} // namespace sandboxd::exec
