#include "cli/returning_daemon.hpp"

namespace sandboxd::cli {
namespace {

using namespace std::chrono_literals;
using clock = connection::clock;

// Nothing tells that a socket will appear.
constexpr auto look_again = 100ms;

} // namespace

connection* returning_daemon::up() {
    if (!daemon_) {
        const auto now = clock::now();
        if (now >= away_->until) {
            std::string what = away_->why;
            if (patience_ > 0ms) what += " and was not back within " + human_time(patience_);
            throw failure(exit_code::not_running, what,
                          "start the daemon (`systemctl --user start deepinfra-sandboxd.socket`, "
                          "or `deepinfra-sandboxd serve`)");
        }
        if (now < away_->next_look) return nullptr;
        away_->next_look = now + look_again;
        try {
            daemon_.emplace(
                connection::begin(here_.sockets(), look_again, here_.wanted_state_dir()));
        } catch (const failure& why) {
            if (why.code() != exit_code::not_running) throw;
            return nullptr;
        }
    }
    return daemon_->take_greeting() ? &*daemon_ : nullptr;
}

std::chrono::milliseconds returning_daemon::time_to_wait() {
    if (daemon_) return daemon_->check_pulse();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(away_->next_look - clock::now());
    return std::max(0ms, left);
}

bool returning_daemon::lost(const std::string& why) {
    const auto now = clock::now();
    daemon_.reset();
    if (away_) {
        away_->next_look = now + look_again;
        return false;
    }
    away_ = absence{why, now + patience_, now};
    return true;
}

} // namespace sandboxd::cli
