#include "exec/session.hpp"

#include "base/cancellation.hpp"
#include "core/shim_command.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds runner_slack{300};
constexpr std::chrono::milliseconds no_slack{0};
// The clients of a daemon that was started anew, by when they do.
constexpr std::chrono::seconds clients_come_back{10};
constexpr std::int64_t resend_note = 1'000; // ms between two notes in the journal that it is sent

// A time that the next daemon understands.
std::int64_t unix_now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
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

} // namespace

session::session(surroundings& around, request request)
    : around_(around), command_(std::move(request.command)), want_(std::move(request.want)),
      only_generation_(request.generation), fsm_(around.limits),
      files_(std::make_shared<start_files>(around.executor, around.account)),
      pause_(around.executor), deadline_(around.executor), linger_(around.executor),
      forget_(around.executor), come_back_(around.executor), moved_(around.executor),
      asked_at_(std::chrono::steady_clock::now()) {
    core::check_spec(command_);
    record_.exec_id = std::move(request.exec_id);
    record_.key = std::move(request.key);
    record_.client = around.manager.remembered(want_.client);
    record_.asked_in = request.asked_in.value_or(around.manager.generation(record_.key));
    record_.timeout = request.timeout;
    record_.digest = core::command_digest(command_, record_.timeout);
    record_.at = unix_now();
    if (command_.stdin_open || command_.script_size) {
        make_input(command_.stdin_open);
    }
}

session::session(surroundings& around, core::exec_record record)
    : around_(around), record_(std::move(record)), fsm_(around.limits), resumed_(true),
      doubtful_(record_.phase == core::exec_phase::sent), pause_(around.executor),
      deadline_(around.executor), linger_(around.executor), forget_(around.executor),
      come_back_(around.executor), moved_(around.executor), certain_(false),
      asked_at_(std::chrono::steady_clock::now() -
                std::chrono::milliseconds(std::max<std::int64_t>(unix_now() - record_.at, 0))) {
    if (record_.phase == core::exec_phase::ended) {
        fsm_.restore(record_.exit);
    } else if (record_.phase == core::exec_phase::accepted) {
        core::exec_exit exit;
        exit.ran = core::started::no;
        exit.message = "the daemon was stopped before it had sent the command; it has not run";
        exit.error.emplace(error_name::shutting_down, exit.message);
        fsm_.restore(std::move(exit));
    }
}

void session::start() {
    keep(core::exec_phase::accepted);
    apply(fsm_.begin());
}

void session::resume() {
    if (record_.attached) {
        // Its processes may still be there, and cancel() can still end them.
        apply(fsm_.give_up("the daemon was started anew while the command ran in a sandbox that "
                           "cannot run the shim"));
        return;
    }
    if (feeds_.empty()) {
        feeds_.push_back(std::make_shared<feed>(around_.executor, weak_from_this(),
                                                std::weak_ptr<subscriber>(), record_.safe, 1));
        feeds_.front()->queue_.leave();
    }
    hold_back(record_.safe, clients_come_back);
    apply(fsm_.resume());
}

std::chrono::milliseconds session::now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
}

std::chrono::milliseconds session::elapsed() const {
    return fsm_.done() ? record_.elapsed
                       : std::chrono::duration_cast<std::chrono::milliseconds>(
                             std::chrono::steady_clock::now() - asked_at_);
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

void session::keep(core::exec_phase phase) {
    record_.phase = phase;
    // Its time is counted from when it was first heard of, also by a later daemon.
    if (phase != core::exec_phase::heard || !resumed_) {
        record_.at = unix_now();
    }
    around_.keep(record_);
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
        around_.manager.distrust(key());
        lease_.release();
        [[fallthrough]];
    case action::acquire:
        carry_out(acquire());
        break;
    case action::send:
        posted(false);
        carry_out(send());
        break;
    case action::read:
        read_first();
        break;
    case action::kill:
        carry_out(kill());
        break;
    case action::look:
        carry_out(look());
        break;
    case action::wait:
        tell_progress({core::life_state::running, fsm_.waiting_for(), elapsed()});
        after(pause_, step.delay, &session::waited);
        break;
    case action::linger:
        after(linger_, step.delay, &session::lingered);
        break;
    case action::arm:
        arm(step.delay);
        break;
    case action::finish:
        finish();
        break;
    case action::correct:
        correct();
        break;
    }
}

// The clock stands still while nothing of the command is on its way, nor can have arrived; once it
// was heard of it goes on, also where its runner died before it began and another one is sent.
void session::posted(bool out) {
    out_ = out;
    if (!out) {
        if (!resumed_ && fsm_.sending()) {
            deadline_.cancel();
        }
        return;
    }
    // What went before may have taken long: a later daemon counts from here too.
    if (unix_now() - record_.at > resend_note) {
        keep(core::exec_phase::sent);
    }
    apply(fsm_.on_posted());
}

void session::arm(std::chrono::milliseconds extra) {
    if (!record_.timeout) {
        return;
    }
    std::chrono::milliseconds left = std::min(*record_.timeout, longest_timeout);
    if (resumed_) {
        const std::chrono::milliseconds passed(std::max<std::int64_t>(unix_now() - record_.at, 0));
        left -= std::min(left, passed);
    }
    // The runner in the sandbox keeps the same time; ours is for when it cannot say so.
    const bool runner = !around_.shims.unusable(sandbox_id());
    after(deadline_, left + extra + (runner ? runner_slack : no_slack), &session::deadline);
}

void session::carry_out(asio::awaitable<void> coroutine) {
    std::erase_if(coroutines_, [](const auto& each) { return each.expired(); });
    coroutines_.push_back(spawn(std::move(coroutine)));
}

// Each coroutine keeps the session alive and ends by telling the machine something, or silently
// when it is cancelled.
std::weak_ptr<asio::cancellation_signal> session::spawn(asio::awaitable<void> coroutine) {
    // A signal of its own, since one coroutine starts the next before it has quite ended.
    const auto stop = std::make_shared<asio::cancellation_signal>();
    asio::co_spawn(around_.executor, ending_well(std::move(coroutine)),
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
    return stop;
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
    if (resumed_) {
        const bool there = co_await acquire_again();
        if (there) {
            apply(fsm_.on_acquired());
        } else if (around_.manager.is_of_other_account(key())) {
            apply(fsm_.on_not_acquired({error_name::account_mismatch,
                                        "the sandbox that the command ran in belongs to another "
                                        "account than the daemon's key"}));
        } else {
            apply(fsm_.on_not_acquired({error_name::sandbox_gone,
                                        "the sandbox that the command ran in does not run any "
                                        "more"}));
        }
        co_return;
    }
    if (input_) {
        const bool there = co_await arrives(input_->script_complete());
        if (!there || input_->script_is_another()) {
            apply(fsm_.on_not_acquired({error_name::invalid_params,
                                        there ? "the script that arrived is not the one that was "
                                                "announced ('script_sha256')"
                                              : "the script that was announced did not arrive"}));
            co_return;
        }
    }
    std::optional<rpc_error> refused;
    try {
        lease_ = co_await hold_sandbox();
    } catch (const rpc_error& error) {
        refused = error;
    }
    if (refused) {
        apply(fsm_.on_not_acquired(std::move(*refused)));
        co_return;
    }
    record_.generation = lease_.record().generation;
    record_.sandbox_id = lease_.record().sandbox_id;
    record_.created = record_.created || core::is_new_since(lease_.record(), record_.asked_in);
    state_lost_ = state_lost_ || lease_.how().state_lost;
    if (lease_.how().created) {
        around_.shims.note_new(sandbox_id());
    }
    around_.shims.note_use(sandbox_id(), record_.generation);
    apply(fsm_.on_acquired());
    if (fsm_.done()) {
        lease_.release(); // cancelled at the last moment
    }
}

asio::awaitable<sandbox::lease> session::hold_sandbox() {
    const auto progress = [self = shared_from_this()](const sandbox::progress& news) {
        self->tell_progress(news);
    };
    if (only_generation_) {
        co_return co_await around_.manager.hold_generation(key(), *only_generation_, want_, id(),
                                                           progress);
    }
    co_return co_await around_.manager.acquire(key(), want_, id(), progress);
}

asio::awaitable<bool> session::acquire_again() {
    if (!lease_) {
        std::optional<sandbox::lease> held =
            co_await around_.manager.hold_running(key(), sandbox_id(), id(), record_.client);
        if (held && !lease_) {
            lease_ = std::move(*held);
        }
    }
    co_return static_cast<bool>(lease_);
}

void session::finish() {
    for (const auto& each : coroutines_) {
        if (const auto stop = each.lock()) {
            stop->emit(asio::cancellation_type::terminal);
        }
    }
    if (record_.attached && around_.marks != nullptr) around_.marks->on_unseen(sandbox_id());
    end_in_time_what_was_lost();
    pause_.cancel();
    deadline_.cancel();
    linger_.cancel();
    if (input_) {
        input_->end();
    }
    if (files_ && fsm_.exit().ran == core::started::no) {
        files_->take_away();
    }
    command_ = {}; // an ended command is remembered for a while, its input need not be
    const core::exec_exit& exit = fsm_.exit();
    record_.elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - asked_at_);
    note_end();
    spdlog::info("exec {} in {}: {} {} after {} ms, {} bytes{}{}", id(), describe(key()),
                 core::to_string(exit.reason),
                 exit.returncode ? std::to_string(*exit.returncode) : "-", elapsed().count(),
                 record_.output_end, exit.message.empty() ? "" : ": ", exit.message);
    moved_.notify_all();
    end_feeds();
}

// Without the shim nobody but us ends a command whose connection was lost: it may still be running.
void session::end_in_time_what_was_lost() {
    const bool may_run_on = record_.attached && record_.timeout && line_ &&
                            fsm_.exit().reason == core::exit_reason::lost;
    if (!may_run_on || deadline_.expiry() <= std::chrono::steady_clock::now()) {
        return;
    }
    asio::co_spawn(
        around_.executor,
        [self = shared_from_this(), which = line_,
         at = deadline_.expiry()]() -> asio::awaitable<void> {
            asio::steady_timer time(self->around_.executor, at);
            co_await time.async_wait(asio::use_awaitable);
            const kill_outcome outcome = co_await which->kill(core::kill_signal::kill);
            spdlog::info("exec {} in {}: its time is over, and what may have run on {}", self->id(),
                         describe(self->key()),
                         outcome.why.empty() ? "is ended" : "could not be ended: " + outcome.why);
        },
        asio::detached);
}

bool session::settled() const noexcept {
    return fsm_.done() && !feeds_busy() &&
           std::none_of(feeds_.begin(), feeds_.end(),
                        [](const auto& each) { return each->attended(); });
}

std::uint64_t session::output_end() const noexcept {
    const std::uint64_t seen = std::max({record_.output_end, record_.safe, seen_end_});
    return fsm_.done() ? std::max(seen, fsm_.exit().output_end.value_or(0)) : seen;
}

void session::tell_progress(const sandbox::progress& news) {
    for (const auto& each : feeds_) {
        if (const std::shared_ptr<subscriber> listener = each->to_.lock()) {
            listener->on_progress(key(), news);
        }
    }
}

} // namespace sandboxd::exec
