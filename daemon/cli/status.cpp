// `status`: the daemon, its sandboxes, the commands in them, and what needs attention.
#include "cli/profiles.hpp"
#include "cli/sandbox_text.hpp"
#include "cli/verb.hpp"
#include "sys/version.hpp"

#include <poll.h>
#include <unistd.h>

namespace sandboxd::cli {
namespace {

constexpr int refresh_ms = 2000;

int show_once(const context& here, bool as_json) {
    connection daemon = here.connect();
    const json::object status = daemon.call("daemon.status", {});
    if (as_json) {
        print_json(status);
    } else {
        const json::object commands =
            with_profile_names(daemon.call("exec.list", {}), here.env.home);
        print(render_status(with_profile_names(status, here.env.home), array_of(commands, "execs"),
                            here.out, sys::version()));
    }
    return static_cast<int>(degraded(status) ? exit_code::error : exit_code::ok);
}

// Until interrupted; a daemon that goes and comes back is part of what one watches.
[[noreturn]] void watch(const context& here, bool as_json) {
    for (;;) {
        if (here.out_is_terminal && !as_json) print("\x1b[H\x1b[2J");
        try {
            show_once(here, as_json);
        } catch (const failure& why) {
            if (why.code() != exit_code::not_running && why.code() != exit_code::unresponsive)
                throw;
            const std::string text = render_failure(why, here.err);
            (void)!::write(STDERR_FILENO, text.data(), text.size());
        }
        ::poll(nullptr, 0, refresh_ms);
    }
}

int run(const context& here, const arguments& given) {
    if (given.has("watch")) watch(here, given.has("json"));
    return show_once(here, given.has("json"));
}

} // namespace

const verb status_verb{
    .name = "status",
    .usage = "status [OPTION...]",
    .summary = "the daemon, its sandboxes, and what needs attention",
    .details =
        R"(Shows the daemon, its sandboxes, the commands under way (for attach and cancel), and what needs
attention. Asks the cloud nothing.

exit codes:
  0 all is well; 1 commands cannot run as they should (no key, not ready, an error below);
  3 the daemon is not running; 4 it does not answer

examples:
  deepinfra-sandboxd status
  deepinfra-sandboxd status --json | jq '.sandboxes[] | select(.state == "running") | .id'
)",
    .flags = {{"json", nullptr, "one JSON object: the answer of daemon.status"},
              {"watch,w", nullptr, "again and again, until Ctrl-C"}},
    .run = run,
};

} // namespace sandboxd::cli
