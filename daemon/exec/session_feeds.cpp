// A session's feeds: who reads the command's output, from where, and for how long.
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

// Once a command was ended on demand, whoever has fallen behind gets so much time to catch up.
constexpr std::chrono::seconds tail_patience{2};
// The client that asked for a command, and has lost its connection: that others read on takes
// nothing from it meanwhile.
constexpr std::chrono::seconds owner_comes_back{10};
// For the sandbox of an ended command, when somebody wants its output.
constexpr std::chrono::seconds sandbox_patience{30};

// What the platform makes of bytes that are no text (S).
constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

bool ended_on_demand(const core::exec_exit& exit) {
    return exit.reason == core::exit_reason::cancelled ||
           exit.reason == core::exit_reason::timed_out;
}

} // namespace

std::shared_ptr<feed> session::attach(view_request view) {
    const bool come_back = view.owner && !resumed_;
    const std::shared_ptr<feed> added = add_feed(std::move(view));
    if (come_back) { // from now on it keeps what it needs itself
        hold_back_no_more();
    }
    return added;
}

std::shared_ptr<feed> session::add_feed(view_request view) {
    check_position(view.from);
    if (view.replaces) {
        view.replaces->detach();
    }
    if (!feeds_.empty() && !feeds_.front()->attended()) {
        move_first(view);
        return feeds_.front();
    }
    if (!feeds_.empty() && record_.attached && sent()) {
        throw rpc_error(error_name::exec_id_in_use,
                        "another client is attached to this command, and in a sandbox that cannot "
                        "run the shim there is room for one; nothing was done");
    }
    const bool first = feeds_.empty();
    feeds_.push_back(std::make_shared<feed>(around_.executor, weak_from_this(), view.to, view.from,
                                            view.window));
    const std::shared_ptr<feed> added = feeds_.back();
    added->owner_ = view.owner;
    if (!first || fsm_.done()) {
        follow_soon(added);
    }
    return added;
}

// Where the end of the output is known for sure, nobody can have seen more.
void session::check_position(std::uint64_t from) const {
    const bool known = !resumed_ || fsm_.done();
    if (known && from > output_end()) {
        throw rpc_error(error_name::invalid_params, "'offset' is beyond the " +
                                                        std::to_string(output_end()) +
                                                        " bytes of output; nothing was done");
    }
}

// The first feed has lost its client and gets another.
void session::move_first(view_request view) {
    feed& first = *feeds_.front();
    first.to_ = view.to;
    first.owner_ = view.owner;
    if (record_.attached) {
        first.queue_.rewind(view.from, view.window);
        first.room_.notify_all();
        if (!first.queue_.empty() || first.over_) {
            first.ready();
        }
        return;
    }
    record_.output_end = output_end(); // known, it may be, from that queue alone
    first.queue_ = core::output_queue(view.window, view.from);
    first.over_ = false;
    if (fsm_.done()) {
        follow_soon(feeds_.front());
    } else if (fsm_.running() || fsm_.ending()) {
        stop_reading(first);
        certain_ = certain_ && line_->forgettable();
        line_ = line_from(place_of(first), true);
        first.line_ = line_;
        first.reader_ = spawn(read(feeds_.front()));
    } else if (line_) {
        line_->attend(true);
    }
}

// Where a line to it begins. What a client of an earlier daemon says to have may be more than there
// is.
std::uint64_t session::place_of(const feed& which) const noexcept {
    return std::min(which.queue_.end(), output_end());
}

void session::stop_reading(feed& which) {
    if (const auto stop = which.reader_.lock()) {
        stop->emit(asio::cancellation_type::terminal);
    }
    which.reader_.reset();
}

void session::read_first() {
    // Somebody may have attached, further back, while the line was being opened.
    if (const std::uint64_t wanted = place_of(*feeds_.front()); wanted < line_start_) {
        line_->hang_up();
        line_ = line_from(wanted, true);
    }
    feeds_.front()->line_ = line_;
    feeds_.front()->reader_ = spawn(read(feeds_.front()));
    moved_.notify_all();
}

// The same command on another connection, from where the first feed stands.
void session::read_anew() {
    feed& first = *feeds_.front();
    stop_reading(first);
    // A line that was never read from may have something on its way.
    certain_ = certain_ && first.line_ && line_->forgettable();
    line_ = line_from(place_of(first), first.attended());
    first.over_ = false;
    read_first();
}

void session::follow_soon(const std::shared_ptr<feed>& which) {
    const bool has_all = fsm_.certain() && which->queue_.end() >= output_end();
    const bool nothing_left =
        fsm_.done() && (record_.attached || record_.forgotten || !sent() || has_all);
    if (nothing_left) {
        end_feed(*which);
    } else {
        which->reader_ = spawn(follow(which));
    }
}

asio::awaitable<void> session::follow(std::shared_ptr<feed> into) {
    using namespace asio::experimental::awaitable_operators;
    while (!fsm_.running() && !fsm_.ending() && !fsm_.done()) {
        co_await moved_.wait();
    }
    bool there = sent() && !record_.attached;
    if (there && fsm_.done()) {
        asio::steady_timer patience(around_.executor, sandbox_patience);
        const auto first = co_await (acquire_again() || patience.async_wait(asio::use_awaitable));
        there = first.index() == 0 && std::get<0>(first);
    }
    if (there) {
        into->line_ = line_from(place_of(*into), true);
        if (fsm_.done() && !fsm_.certain()) {
            // Whoever asks again how it ended is not kept waiting where that cannot be found out.
            const auto opened = [from = into->line_]() -> asio::awaitable<void> {
                const line_opened outcome = co_await from->open();
                static_cast<void>(
                    outcome); // a line to what was sent before opens, or tells its end
            };
            asio::steady_timer patience(around_.executor, sandbox_patience);
            const auto first = co_await (opened() || patience.async_wait(asio::use_awaitable));
            there = first.index() == 0;
        }
    }
    if (there) {
        co_await read(into);
    } else {
        end_feed(*into);
    }
}

asio::awaitable<void> session::read(std::shared_ptr<feed> into) {
    const std::shared_ptr<line> from = into->line_;
    const hang_up at_the_end(*from);
    // A reader whose feed was given another line may still be handed one event of the old one.
    while (!into->over_ && into->line_ == from) {
        const bool there = co_await wait_for_room(*into, *from);
        if (!there) {
            end_feed(*into);
            co_return;
        }
        line_event event = co_await from->next();
        if (into->line_ != from || into->over_) { // it may have been cut meanwhile
            co_return;
        }
        take_event(*into, std::move(event));
    }
}

// False: its client has come back so late that the sandbox does not run any more.
asio::awaitable<bool> session::wait_for_room(feed& into, line& from) {
    using namespace asio::experimental::awaitable_operators;
    const std::chrono::milliseconds full_since = now();
    const std::chrono::milliseconds grace = around_.shims.spool_grace();
    while (into.queue_.full()) {
        asio::steady_timer long_time(
            around_.executor, std::min<std::chrono::milliseconds>(longest_connection(), grace));
        const auto first =
            co_await (into.room_.wait() || long_time.async_wait(asio::use_awaitable));
        if (first.index() == 0) {
            continue;
        }
        if (now() - full_since >= grace && may_be_overdue(into)) {
            into.overdue_ = true;
            acknowledged(into);
            let_go_if_idle();
        } else {
            from.still_here();
        }
    }
    if (std::exchange(into.overdue_, false) && fsm_.done()) {
        co_return co_await acquire_again();
    }
    co_return true;
}

// The command waits for the client that asked for it however long that takes, as for the reader of
// a pipe. Neither it nor its sandbox, once it has ended, waits so for a watcher that was left
// standing.
bool session::may_be_overdue(const feed& which) const noexcept {
    return fsm_.done() || !which.owner_;
}

void session::take_event(feed& into, line_event event) {
    if (auto* output = std::get_if<line_output>(&event)) {
        const auto stream = output->is_stderr ? core::output_stream::err : core::output_stream::out;
        const bool idle = !into.queue_.can_take();
        if (output->at) {
            seen_end_ = std::max(seen_end_, output->at->pos + output->bytes.size());
            into.queue_.push(stream, output->at->pos, output->at->offset, std::move(output->bytes));
        } else {
            altered_ = altered_ || output->bytes.find(replacement_character) != std::string::npos;
            into.queue_.push(stream, std::move(output->bytes));
            seen_end_ = std::max(seen_end_, into.queue_.end());
        }
        apply(fsm_.on_output());
        if (idle) {
            into.ready();
        }
        return;
    }
    // Whatever it is, nothing follows it.
    if (const auto* verdict = std::get_if<core::exec_exit>(&event)) {
        const bool first = &into == feeds_.front().get();
        into.queue_.finish(verdict->output_end.value_or(0));
        // Another feed's line may be lost for reasons of its own.
        const bool counts = first || verdict->reason != core::exit_reason::lost;
        if (counts && fsm_.done()) { // this feed is to be told what is known now
            apply(fsm_.on_verdict(*verdict));
            end_feed(into);
            return;
        }
        end_feed(into);
        const bool perhaps_never_there = doubtful_ || (!resumed_ && !line_->heard());
        if (first && perhaps_never_there && verdict->reason == core::exit_reason::lost) {
            carry_out(settle(*verdict));
        } else if (counts) {
            apply(fsm_.on_verdict(*verdict));
        }
        return;
    }
    end_feed(into);
    if (const auto* exited = std::get_if<cloud::exec_exited>(&event)) {
        apply(fsm_.on_exited(exited->returncode));
    } else if (const auto* refused = std::get_if<cloud::exec_refused>(&event)) {
        apply(fsm_.on_refused(refused->message));
    } else if (const auto* cut = std::get_if<cloud::exec_cut>(&event)) {
        apply(fsm_.on_cut(cut->why));
    }
}

void session::end_feed(feed& which) {
    which.over_ = true;
    if (fsm_.done()) {
        which.queue_.finish(output_end());
        which.ready();
        let_go_if_idle();
    }
}

// The command has ended. What its sandbox still has of its output is read to the end, at the pace
// of whoever reads; but not waited for when the command was ended on demand, nor where the end is
// not known for sure.
void session::end_feeds() {
    const core::exec_exit& exit = fsm_.exit();
    const std::vector<std::shared_ptr<feed>> all = feeds_;
    for (const std::shared_ptr<feed>& each : all) {
        if (each->over_) {
            each->queue_.finish(output_end()); // it may have been given up before the end
            each->ready();
            continue;
        }
        const bool lacks_some = exit.output_end && each->queue_.end() < *exit.output_end;
        const bool goes_on = !each->reader_.expired() && each->attended() && !record_.attached &&
                             !exit.kill_unconfirmed &&
                             (!ended_on_demand(exit) || each->queue_.full() || lacks_some);
        if (!goes_on) {
            cut(*each);
        }
    }
    if (ended_on_demand(exit) && feeds_busy()) {
        after(linger_, tail_patience, &session::cut_tails);
    }
    let_go_if_idle();
}

void session::cut_tails() {
    const std::vector<std::shared_ptr<feed>> all = feeds_;
    for (const std::shared_ptr<feed>& each : all) {
        if (!each->over_) {
            cut(*each);
        }
    }
}

// What it lacks is not known, so it cannot be counted; where the end itself is in doubt, that says
// it all.
void session::cut(feed& which) {
    const core::exec_exit& exit = fsm_.exit();
    cut_short_ = cut_short_ || (ended_on_demand(exit) && !exit.kill_unconfirmed &&
                                exit.ran != core::started::no && which.attended());
    stop_reading(which);
    end_feed(which);
}

bool session::feeds_busy() const noexcept {
    return std::any_of(feeds_.begin(), feeds_.end(), [](const auto& each) {
        return !each->over_ && !each->overdue_ && !each->reader_.expired();
    });
}

void session::let_go_if_idle() {
    if (fsm_.done() && !feeds_busy()) {
        lease_.release();
    }
    forget_if_had();
}

// The first client has left and another one reads: its place is that one's now, as somebody must
// say what is safe, or the command waits for that word for ever.
bool session::promote_next() {
    const auto next = std::find_if(feeds_.begin() + 1, feeds_.end(), [](const auto& each) {
        return each->attended() && !each->over_ && !each->overdue_;
    });
    if (next == feeds_.end() || record_.attached || fsm_.done() || fsm_.ending()) {
        return false;
    }
    std::rotate(feeds_.begin(), next, next + 1);
    const std::shared_ptr<feed> heir = feeds_.front();
    if (!fsm_.running()) { // it has waited for the start, and is read for from then on
        stop_reading(*heir);
        return true;
    }
    certain_ = certain_ && line_->forgettable();
    if (heir->line_) {
        line_ = heir->line_;
    } else { // it is about to begin
        stop_reading(*heir);
        line_ = line_from(place_of(*heir), true);
        heir->line_ = line_;
        heir->reader_ = spawn(read(heir));
    }
    return true;
}

void session::detached(const std::shared_ptr<feed>& which) {
    if (which->owner_ && !fsm_.done() && !record_.attached) {
        hold_back(which->queue_.safe(), owner_comes_back);
    }
    const bool leads = !feeds_.empty() && which == feeds_.front();
    const bool first = leads && !promote_next();
    if (!first || fsm_.done()) {
        stop_reading(*which);
        which->over_ = true;
    }
    if (first) {
        which->queue_.leave();
        which->room_.notify_all();
        if (line_) {
            line_->attend(false);
        }
    } else {
        record_.output_end = output_end(); // as in move_first
        std::erase(feeds_, which);
        acknowledged(*which);
    }
    let_go_if_idle();
}

} // namespace sandboxd::exec
