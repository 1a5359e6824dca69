// What is told of a session's end and put right later, what its clients have safe, and when its
// sandbox may forget the command.
#include "exec/session.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace sandboxd::exec {
namespace {

// A client that does not say that it has got the end may still have; the sandbox is not kept
// waiting for it longer.
constexpr std::chrono::minutes forget_after{10};
// Of output that the sandbox would keep for a day otherwise.
constexpr std::uint64_t worth_a_call = 1U << 20;

} // namespace

void session::note_end() {
    record_.exit = fsm_.exit();
    record_.exit.message = message();
    record_.output_end = output_end();
    const core::exec_exit& exit = fsm_.exit();
    if (exit.output_end ||
        exit.ran == core::started::no) { // nothing is added to its spool any more
        spool_.hold_at_most(exit.output_end.value_or(0));
    }
    keep(core::exec_phase::ended);
}

void session::correct() {
    note_end();
    spdlog::info("exec {} in {}: its end is known now: {} {}, {} bytes", id(), describe(key()),
                 core::to_string(record_.exit.reason),
                 record_.exit.returncode ? std::to_string(*record_.exit.returncode) : "-",
                 record_.output_end);
}

std::string session::message() const {
    std::string text = fsm_.exit().message;
    const auto add = [&text](std::string_view more) {
        text += text.empty() ? "" : "; ";
        text += more;
    };
    if (!stopped_because_.empty()) {
        add(stopped_because_);
    }
    if (record_.attached && fsm_.exit().reason == core::exit_reason::lost) {
        add("its sandbox cannot run the shim, with which it could be found again");
    }
    if (cut_short_) {
        add("the last of its output may be missing, as it was not waited for");
    }
    if (altered_) {
        add("its sandbox cannot run the shim, so bytes of its output that are no UTF-8 may have "
            "come out as U+FFFD");
    }
    if (state_lost_) {
        add("the sandbox known before is gone, with its files: this ran in a new, empty one");
    }
    return text;
}

// A client that was told of an end that was in doubt need not come back for what goes on all the
// same.
bool session::keeps(const feed& which) const noexcept {
    const bool left_in_doubt = fsm_.done() && !fsm_.certain() && which.over_;
    return which.attended() && !which.overdue_ && !left_in_doubt;
}

// The sandbox may forget what each of them has.
void session::acknowledged(const feed& by) {
    std::optional<std::uint64_t> safe;
    for (const std::shared_ptr<feed>& each : feeds_) {
        if (keeps(*each)) {
            safe = std::min(safe.value_or(each->queue_.safe()), each->queue_.safe());
        }
    }
    if (!safe) {
        return;
    }
    const std::uint64_t pos = std::min(*safe, held_back_.value_or(*safe));
    if (pos < record_.safe) {
        return;
    }
    record_.safe = pos;
    const bool by_itself = feeds_.front()->over_ && by.line_;
    const std::shared_ptr<line> to = by_itself ? by.line_ : line_;
    if (to) {
        to->acknowledged(pos, false);
    }
    // Only who reads on hears that the sandbox can keep no more.
    for (const std::shared_ptr<feed>& each : feeds_) {
        if (each->line_ && each->line_ != to) {
            each->line_->acknowledged(pos, true);
        }
    }
}

void session::hold_back(std::uint64_t from, std::chrono::milliseconds patience) {
    held_back_ = from;
    after(come_back_, patience, &session::hold_back_no_more);
}

void session::hold_back_no_more() {
    come_back_.cancel();
    if (std::exchange(held_back_, std::nullopt) && !feeds_.empty()) {
        acknowledged(*feeds_.front());
        forget_if_had();
    }
}

void session::acknowledged_end() {
    // An end that is in doubt may still be put right, for whoever asks again.
    if (fsm_.certain()) {
        owner_has_all_ = true;
        forget_if_had();
    }
}

// Nothing more comes into it: whoever asks again gets another one.
void session::told(const std::shared_ptr<feed>& to) {
    if (to->owner_ && !std::exchange(told_owner_, true)) {
        after(forget_, forget_after, &session::forget_in_time);
    }
    to->to_.reset();
    if (!feeds_.empty() && to != feeds_.front()) {
        record_.output_end = output_end(); // as in move_first
        std::erase(feeds_, to);
    }
}

bool session::being_read() const noexcept {
    return std::any_of(feeds_.begin(), feeds_.end(),
                       [this](const auto& each) { return !each->over_ && keeps(*each); });
}

void session::forget_if_had() {
    if (owner_has_all_ && !being_read() && !held_back_) {
        forget_.cancel();
        forget();
    }
}

void session::forget_in_time() {
    if (being_read()) {
        after(forget_, forget_after, &session::forget_in_time);
    } else {
        forget();
    }
}

void session::forget() {
    if (record_.forgotten) {
        return;
    }
    spool_ = {};
    record_.forgotten = true;
    keep(core::exec_phase::ended);
    if (certain_ && line_ && line_->forgettable()) {
        around_.shims.told(sandbox_id(), id());
    } else if (!record_.attached && output_end() >= worth_a_call) {
        // A `run` may still be on its way, and must find the claim; what was printed may go.
        around_.shims.release_output(sandbox_id(), id(), output_end());
    }
}

} // namespace sandboxd::exec
