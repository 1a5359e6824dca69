// `list`: the sandboxes.
#include "cli/profiles.hpp"
#include "cli/sandbox_text.hpp"
#include "cli/verb.hpp"

namespace sandboxd::cli {
namespace {

int run(const context& here, const arguments& given) {
    connection daemon = here.connect();
    const json::object result = daemon.call("sandbox.list", {});
    if (given.has("json")) {
        print_json(result);
    } else {
        const json::object named = with_profile_names(result, here.env.home);
        print(render_sandboxes(array_of(named, "sandboxes"), here.out));
    }
    return static_cast<int>(exit_code::ok);
}

} // namespace

const verb list_verb{
    .name = "list",
    .usage = "list [OPTION...]",
    .summary = "the sandboxes",
    .details = R"(Lists the sandboxes that the daemon owns.

example:
  deepinfra-sandboxd list
)",
    .flags = {{"json", nullptr, "one JSON object: the answer of sandbox.list"}},
    .run = run,
};

} // namespace sandboxd::cli
