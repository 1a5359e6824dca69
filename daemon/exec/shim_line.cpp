#include "exec/shim_line.hpp"

#include "core/cloud_error.hpp"
#include "core/spool_release.hpp"
#include "exec/shim_call.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

using link = core::shim_link;

constexpr std::chrono::seconds platform_cap{
    1800}; // on one command (P); the shim leaves well before
constexpr std::chrono::seconds tell_again{2};
constexpr std::chrono::seconds word_takes{15}; // with one that was stalled before it
// A connection may be so much older than its follower was allowed to become.
constexpr std::chrono::seconds least_farewell{2};
constexpr int farewell_part = 20;
constexpr std::chrono::seconds look_at_age_again{1};
constexpr std::uint64_t least_room = 4; // of the spool, unless there is less than was planned

std::chrono::milliseconds now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
}

} // namespace

shim_line::shim_line(asio::any_io_executor executor, sandbox::account& account, shim_keeper& keeper,
                     plan what)
    : executor_(std::move(executor)), account_(account), keeper_(keeper), plan_(std::move(what)),
      link_(plan_.installed, plan_.from, plan_.cwd), step_(link_.begin()),
      run_sent_(plan_.from.has_value()), safe_pos_(plan_.safe), age_(executor_) {
    if (core::kernel_size(plan_.run.argv) > core::least_arguments) {
        link_.expect_long_arguments();
    }
}

asio::awaitable<line_opened> shim_line::open() {
    const reading under_way(*this);
    for (;;) {
        if (step_.what == link::action::refused) {
            co_return line_opened(*step_.failure);
        }
        if (step_.what == link::action::unusable) {
            co_return line_opened(line_unsuitable{step_.text});
        }
        if (link_.heard() || step_.what == link::action::ended) {
            co_return line_opened(line_open{});
        }
        step_ = co_await perform(std::move(step_));
    }
}

asio::awaitable<line_event> shim_line::next() {
    const reading under_way(*this);
    for (;;) {
        if (step_.what == link::action::deliver) {
            line_output piece{step_.data.is_stderr,
                              line_output::place{step_.data.pos, step_.data.offset},
                              std::move(step_.data.bytes)};
            step_ = link::step{};
            co_return line_event(std::move(piece));
        }
        if (step_.what == link::action::ended) {
            if (link_.runner_gone()) {
                keeper_.runner_gone(plan_.sandbox_id);
            }
            co_return line_event(link_.exit());
        }
        if (step_.what == link::action::refused || step_.what == link::action::unusable) {
            throw std::logic_error("a command that was heard of was taken back");
        }
        step_ = co_await perform(std::move(step_));
    }
}

void shim_line::hang_up() noexcept {
    closed_ = true;
    if (step_.what == link::action::ended && stream_) {
        read_to_the_end(executor_, std::move(stream_));
    }
    stream_.reset();
    age_.cancel();
}

asio::awaitable<link::step> shim_line::perform(link::step step) {
    if (given_up_ && !run_sent_) {
        step.what = link::action::refused;
        step.failure = cloud::failure{cloud::failure_kind::bad_request, 0,
                                      "it was given up before it was sent", std::nullopt};
        co_return step;
    }
    switch (step.what) {
    case link::action::install: {
        const install_outcome outcome = co_await keeper_.install(plan_.sandbox_id);
        if (outcome.installed) {
            co_return link_.on_installed();
        }
        if (outcome.failure) {
            co_return link_.on_install_failed(now(), *outcome.failure);
        }
        co_return link_.on_not_installed(outcome.unusable, true);
    }
    case link::action::run:
        if (run_sent_ && plan_.same_boot && !plan_.same_boot()) {
            co_return link_.on_another_boot();
        }
        co_return co_await post(true);
    case link::action::follow:
        co_return co_await post(false);
    case link::action::wait: {
        stream_.reset();
        if (!link_.heard()) {
            posted(false);
        }
        asio::steady_timer timer(executor_, step.delay);
        co_await timer.async_wait(asio::use_awaitable);
        co_return link_.on_waited();
    }
    default:
        co_return co_await read();
    }
}

asio::awaitable<link::step> shim_line::post(bool run) {
    stream_.reset();
    parser_ = core::shim_parser();
    if (std::optional<cloud::failure> held = account_.held_back()) {
        co_return link_.on_post_failed(now(), *held);
    }
    if (run) {
        // A runner that has taken them takes them away too: again they would stay.
        if (uploaded_for_ != link_.starts_over()) {
            for (const core::upload& each : plan_.run.uploads) {
                const auto put = co_await plan_.files->put(plan_.sandbox_id, each);
                if (!put.has_value()) {
                    co_return link_.on_install_failed(now(), put.error());
                }
            }
            uploaded_for_ = link_.starts_over();
        }
        if (given_up_) {
            link::step again;
            again.what = link::action::run;
            co_return again; // to perform(), which knows
        }
        run_sent_ = true;
        posted(true);
    }
    std::vector<std::string> argv = plan_.run.argv;
    if (run) {
        core::bound_run(argv, keeper_.output().most(), spool_grace());
    } else {
        argv = core::shim_follow(keeper_.path(), plan_.exec_id, link_.pos(), plan_.digest,
                                 plan_.longest, keeper_.output().most(), plan_.attended);
    }
    auto sent = co_await account_.cloud().exec(plan_.sandbox_id, std::move(argv), platform_cap);
    account_.observe(sent);
    if (!sent.has_value()) {
        co_return link_.on_post_failed(now(), sent.error());
    }
    stream_ = std::move(*sent);
    received_ = 0;
    watch_age(plan_.longest +
              std::max<std::chrono::milliseconds>(least_farewell, plan_.longest / farewell_part));
    co_return link_.on_answering();
}

// For a client that reads slowly a word is sent as often as `longest` (see still_here). In between,
// also when one of them is slow or has to be said again, it must not be taken for one that is gone.
std::chrono::milliseconds shim_line::spool_grace() const {
    return std::max<std::chrono::milliseconds>(keeper_.spool_grace(),
                                               2 * plan_.longest + word_takes);
}

// The follower leaves by itself, but its last words may be stuck behind what the client does not
// read. A connection that the platform still holds open would be ended at its own cap, with
// whatever the platform chooses to kill. What came and was not read comes again.
void shim_line::watch_age(std::chrono::milliseconds left) {
    if (plan_.longest.count() == 0) {
        return;
    }
    age_.expires_after(left);
    age_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
        const std::shared_ptr<shim_line> self = weak.lock();
        if (error || !self || !self->stream_) {
            return;
        }
        if (self->reading_ || self->step_.what != link::action::read || !self->link_.heard()) {
            self->watch_age(look_at_age_again);
            return;
        }
        self->stream_.reset();
        self->step_ = self->link_.on_let_go();
    });
}

// Nothing: it did not come in time.
asio::awaitable<std::optional<cloud::exec_event>> shim_line::next_event() {
    using namespace asio::experimental::awaitable_operators;
    struct arrived { // as asio's operator|| would take the variant apart
        cloud::exec_event event;
    };
    const auto arrival = [this]() -> asio::awaitable<arrived> {
        arrived got;
        got.event = co_await stream_->next();
        co_return got;
    };
    asio::steady_timer patience(executor_, plan_.silence);
    auto first = co_await (arrival() || patience.async_wait(asio::use_awaitable));
    if (auto* const got = std::get_if<arrived>(&first)) {
        co_return std::move(got->event);
    }
    co_return std::nullopt;
}

asio::awaitable<link::step> shim_line::read() {
    for (;;) {
        if (std::optional<core::shim_frame> frame = parser_.next()) {
            note_spool(*frame);
            note_marks(*frame);
            co_return link_.on_frame(now(), std::move(*frame));
        }
        if (!parser_.broken().empty()) {
            co_return link_.on_nonsense(now(), parser_.broken());
        }
        // Waiting with a limit costs more than the rest of this loop.
        std::optional<cloud::exec_event> event = stream_->ready();
        if (!event) {
            event = co_await next_event();
        }
        if (!event) {
            co_return link_.on_cut(now(), "no sign of life from the sandbox");
        }
        if (const auto* output = std::get_if<cloud::exec_output>(&*event)) {
            received_ += output->text.size();
            if (!output->is_stderr) { // the shim says nothing there
                parser_.feed(output->text);
            }
        } else if (const auto* exited = std::get_if<cloud::exec_exited>(&*event)) {
            const bool never_ran = exited->returncode == 126 || exited->returncode == 127;
            co_return link_.on_terminal(
                now(), "the shim ended with code " + std::to_string(exited->returncode), never_ran);
        } else if (const auto* error = std::get_if<cloud::exec_refused>(&*event)) {
            keeper_.output().on_ended(error->message, received_);
            co_return link_.on_terminal(now(), error->message, false);
        } else if (const auto* cut = std::get_if<cloud::exec_cut>(&*event)) {
            co_return link_.on_cut(now(), cut->why.message);
        }
    }
}

asio::awaitable<kill_outcome> shim_line::kill(core::kill_signal signal) {
    if (!run_sent_) {
        given_up_ = true;
        co_return kill_outcome{"", core::kill_reach::before_start};
    }
    const shim_reply reply = co_await keeper_.call(
        plan_.sandbox_id, core::shim_kill(keeper_.path(), plan_.exec_id, signal), "killed");
    kill_outcome outcome;
    if (reply.note && reply.note->name == "killed" && reply.note->text("confirmed") == "yes") {
        const std::string_view was = reply.note->text("was");
        // "cancelled": by an earlier kill, before it could start.
        const bool unstarted = was == "unclaimed" || was == "cancelled";
        outcome.reach = unstarted        ? core::kill_reach::before_start
                        : was == "ended" ? core::kill_reach::after_end
                                         : core::kill_reach::for_good;
    } else if (reply.note) {
        outcome.why = reply.note->name == "killed"
                          ? "some of them did not end"
                          : "the shim failed: " + std::string(reply.note->text("name"));
        outcome.unkillable = true;
    } else if (reply.failure) {
        // A sandbox that does not run has nothing running in it.
        const bool stands = reply.failure->kind == cloud::failure_kind::conflict;
        outcome.why = stands ? "" : reply.failure->message;
        outcome.unknown_sandbox = reply.failure->kind == cloud::failure_kind::not_found;
    } else {
        // Where nothing of the command was heard, its runner may be as unable as this call was.
        outcome.why = "the shim did not say how the killing went";
        outcome.unkillable = link_.heard() || plan_.from;
    }
    co_return outcome;
}

std::uint64_t shim_line::spool() const noexcept {
    return std::max(plan_.spool, shim_keeper::smallest_spool);
}

void shim_line::acknowledged(std::uint64_t pos, bool only_then) {
    safe_pos_ = std::max(safe_pos_, pos);
    if (only_then && !spool_full_) {
        return;
    }
    const std::uint64_t upto = core::release_upto(safe_pos_, release_, spool(), spool_full_);
    if (std::exchange(release_, upto) < upto) {
        acknowledge_soon();
    }
}

// Where the sandbox's disk is full, its spool is a few megabytes of memory, whatever was planned.
// What an earlier daemon has planned is known to the runner alone.
void shim_line::note_spool(const core::shim_frame& frame) {
    const auto* note = std::get_if<core::shim_note>(&frame);
    if (note == nullptr) {
        return;
    }
    if (note->name == "full") {
        const std::uint64_t kept =
            note->number("end").value_or(0) - note->number("start").value_or(0);
        spool_full_ = spool_full_ || note->text("blocked") == "yes" || kept < spool() / least_room;
        acknowledged(safe_pos_, true);
    }
    if (const auto most = note->number("spool"); most && plan_.spool == 0) {
        plan_.spool = *most;
    }
}

void shim_line::note_marks(const core::shim_frame& frame) {
    const auto* note = std::get_if<core::shim_note>(&frame);
    if (note != nullptr && !note->marks.empty() && plan_.board != nullptr) {
        plan_.board->on_marks(plan_.sandbox_id, plan_.marks, note->marks);
    }
}

// The same word again keeps the shim from taking the command for one that nobody attends, and is a
// call that finishes, which keeps the platform from taking the sandbox for idle (D).
void shim_line::still_here() {
    acknowledge_soon();
}

void shim_line::acknowledge_soon() {
    tell_now_ = true;
    if (!telling_) {
        telling_ = true;
        asio::co_spawn(
            executor_, [self = shared_from_this()] { return self->keep_acknowledging(); },
            asio::detached);
    }
}

// A full spool waits for this one word, so it is said until it has arrived.
asio::awaitable<void> shim_line::keep_acknowledging() {
    asio::steady_timer pause(executor_);
    while (tell_now_ && !closed_ && step_.what != link::action::ended) {
        tell_now_ = false;
        spool_full_ = false; // it may say so again before the answer is here
        const std::uint64_t pos = release_;
        const told how = co_await send_acknowledgement(pos);
        if (how == told::never) {
            break;
        }
        if (how == told::no) {
            tell_now_ = true;
            pause.expires_after(tell_again);
            co_await pause.async_wait(asio::use_awaitable);
        }
    }
    telling_ = false;
}

asio::awaitable<shim_line::told> shim_line::send_acknowledgement(std::uint64_t pos) {
    const shim_reply reply = co_await keeper_.call(
        plan_.sandbox_id, core::shim_acknowledge(keeper_.path(), plan_.exec_id, pos), "acked");
    if (reply.note && reply.note->name == "acked") {
        co_return told::yes;
    }
    // A sandbox that does not run keeps nothing that waits for it.
    const bool stands = reply.failure && (reply.failure->kind == cloud::failure_kind::conflict ||
                                          reply.failure->kind == cloud::failure_kind::not_found);
    co_return stands ? told::never : told::no;
}

} // namespace sandboxd::exec
