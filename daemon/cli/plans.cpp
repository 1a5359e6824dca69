// `plans`: what the platform offers.
#include "cli/sandbox_text.hpp"
#include "cli/verb.hpp"

namespace sandboxd::cli {
namespace {

int run(const context& here, const arguments& given) {
    connection daemon = here.connect_with_key();
    const json::object result = daemon.call("plan.list", {});
    if (given.has("json")) {
        print_json(result);
    } else {
        print(render_plans(result, here.out));
    }
    return static_cast<int>(exit_code::ok);
}

} // namespace

const verb plans_verb{
    .name = "plans",
    .usage = "plans [OPTION...]",
    .summary = "the sizes of sandbox that the platform offers",
    .details =
        R"(Lists the sizes of sandbox that the platform offers, with their prices. The option `plan`
(or DEEPINFRA_SANDBOX_PLAN) chooses one for new sandboxes.

example:
  deepinfra-sandboxd plans
)",
    .flags = {{"json", nullptr, "one JSON object: the answer of plan.list"}},
    .run = run,
};

} // namespace sandboxd::cli
