// `wait`: until the daemon is up and ready.
#include "cli/verb.hpp"

#include <poll.h>

namespace sandboxd::cli {
namespace {

using namespace std::chrono_literals;
using clock = connection::clock;

constexpr int look_again_ms = 50; // nothing tells that a socket will appear

std::optional<clock::time_point> deadline_of(const arguments& given) {
    const auto text = given.value("timeout");
    if (!text) return std::nullopt;
    try {
        return clock::now() + sys::parse_duration(*text);
    } catch (const std::invalid_argument& error) {
        throw usage_error(std::string("--timeout: ") + error.what(), "wait");
    }
}

// Nothing if it is ready, else why not.
std::optional<failure> look(const context& here, std::chrono::milliseconds patience) {
    try {
        connection daemon = here.connect(patience);
        const json::object status = daemon.call("daemon.status", {});
        const std::string phase(text_of(object_of(status, "daemon"), "phase"));
        if (phase == "ready") return std::nullopt;
        return failure(exit_code::error, "the daemon is " + phase);
    } catch (const failure& why) {
        if (why.code() != exit_code::not_running && why.code() != exit_code::unresponsive) throw;
        if (why.name() == "incompatible_protocol") throw;
        return why;
    }
}

int run(const context& here, const arguments& given) {
    const auto deadline = deadline_of(given);
    for (;;) {
        std::chrono::milliseconds patience = connection::pulse;
        if (deadline) {
            patience =
                std::clamp(std::chrono::ceil<std::chrono::milliseconds>(*deadline - clock::now()),
                           1ms, patience);
        }
        const auto why_not = look(here, patience);
        if (!why_not) return static_cast<int>(exit_code::ok);
        if (deadline && clock::now() >= *deadline) throw *why_not;
        ::poll(nullptr, 0, look_again_ms);
    }
}

} // namespace

const verb wait_verb{
    .name = "wait",
    .usage = "wait [--timeout TIME]",
    .summary = "wait until the daemon is up and ready",
    .details = R"(Waits until the daemon is up and ready; starts one that systemd starts on demand.

exit codes:
  0 it is ready; 1 it is up, but not ready; 3 it is not running; 4 it does not answer

example:
  deepinfra-sandboxd wait --timeout 10 && deepinfra-sandboxd exec -- true
)",
    .flags = {{"timeout", "TIME", "give up after so long: 10, 0.5, 2m [default: never]"}},
    .run = run,
};

} // namespace sandboxd::cli
