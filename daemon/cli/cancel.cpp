// `cancel`: end one command, and nothing else.
#include "cli/verb.hpp"

namespace sandboxd::cli {
namespace {

int run(const context& here, const arguments& given) {
    if (given.positionals().empty()) {
        throw usage_error("which command? `deepinfra-sandboxd status` shows those that run",
                          "cancel");
    }
    const std::string& exec_id = given.positionals().front();
    json::object params{{"exec_id", exec_id}};
    if (const auto signal = given.value("signal")) params["signal"] = *signal;
    connection daemon = here.connect();
    const json::object result = daemon.call("exec.cancel", std::move(params));
    if (given.has("json")) print_json(result);
    if (!flag_of(result, "confirmed")) {
        const std::string_view why = text_of(result, "message");
        throw failure(exit_code::error,
                      why.empty() ? "the end of the command is not confirmed" : std::string(why));
    }
    if (!given.has("json")) print("cancelled " + printable(exec_id) + "\n");
    return static_cast<int>(exit_code::ok);
}

} // namespace

const verb cancel_verb{
    .name = "cancel",
    .usage = "cancel [OPTION...] EXEC_ID",
    .summary = "end one command; its sandbox goes on",
    .details =
        R"(Ends one command with all its processes. Its sandbox, and everything else in it, goes on.

example:
  deepinfra-sandboxd cancel cli-0f3c9a5211aa77e0
)",
    .flags = {{"signal", "INT|TERM|KILL", "what to send first [default: KILL]"},
              {"json", nullptr, "one JSON object: the answer of exec.cancel"}},
    .positionals = 1,
    .run = run,
};

} // namespace sandboxd::cli
