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

} // namespace

void session::note_end() {
    record_.exit = fsm_.exit();
    record_.exit.message = message();
    record_.output_end = output_end();
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
    if (!safe || *safe < record_.safe) {
        return;
    }
    record_.safe = *safe;
    const bool by_itself = feeds_.front()->over_ && by.line_;
    if (const std::shared_ptr<line> to = by_itself ? by.line_ : line_) {
        to->acknowledged(*safe);
    }
}

void session::acknowledged_end(std::uint64_t pos) {
    // An end that is in doubt may still be put right, for whoever asks again.
    if (fsm_.certain() && told_owner_ && pos >= output_end()) {
        owner_has_all_ = true;
        forget_if_had();
    }
}

void session::told(const feed& to) {
    told_owner_ = told_owner_ || to.owner_;
    if (!std::exchange(told_, true)) {
        after(forget_, forget_after, &session::forget_in_time);
    }
}

bool session::being_read() const noexcept {
    return std::any_of(feeds_.begin(), feeds_.end(),
                       [this](const auto& each) { return !each->over_ && keeps(*each); });
}

void session::forget_if_had() {
    if (owner_has_all_ && !being_read()) {
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
    }
}

} // namespace sandboxd::exec
