// `attach`: the output and the end of a command that was started before.
#include "cli/exec_session.hpp"
#include "cli/verb.hpp"

#include <charconv>
#include <limits>

namespace sandboxd::cli {
namespace {

std::uint64_t offset_of(const std::string& text) {
    std::uint64_t offset = 0;
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, offset);
    if (error != std::errc() || parsed != end ||
        offset > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        throw usage_error("--offset wants a number of bytes, not \"" + text + "\"", "attach");
    }
    return offset;
}

int run(const context& here, const arguments& given) {
    if (given.positionals().empty()) {
        throw usage_error("which command? `deepinfra-sandboxd status` shows those that run",
                          "attach");
    }
    exec_call call;
    call.exec_id = given.positionals().front();
    if (const auto offset = given.value("offset")) call.offset = offset_of(*offset);
    call.patience = patience_of(given, "attach");
    return show_command(here, here.connect(), std::move(call));
}

} // namespace

const verb attach_verb{
    .name = "attach",
    .usage = "attach [OPTION...] EXEC_ID",
    .summary = "show a command started before, to its end",
    .details =
        R"(Shows the output of a command that was started before, from its beginning, and passes its exit
code on; whoever started it, and whether it still runs or has ended lately. Its output is kept
until whoever started it has got all of it; of more than 192 MiB as a rule (less where many commands
of one sandbox keep theirs) only the later part is. Several may watch one command.

Ctrl-C only leaves: the command goes on. `cancel` ends it.

exit codes:
  the command's own; 124 it timed out; 130 it was cancelled, or Ctrl-C;
  125 daemon or platform failed (the text says whether it ran)

examples:
  deepinfra-sandboxd attach cli-0f3c9a5211aa77e0
  deepinfra-sandboxd attach cli-0f3c9a5211aa77e0 --offset 8192
)",
    .flags = {{"offset", "BYTES", "leave out so much, both streams together [default: 0]"},
              reconnect_flag},
    .positionals = 1,
    .failed = exit_code::failed,
    .run = run,
};

} // namespace sandboxd::cli
