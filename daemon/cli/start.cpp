// `start`: have a sandbox running before it is needed.
#include "cli/profiles.hpp"
#include "cli/sandbox_text.hpp"
#include "cli/sandbox_verb.hpp"

namespace sandboxd::cli {
namespace {

int run(const context& here, const arguments& given) {
    const json::object result =
        call_with_progress(here, "sandbox.start", chosen_sandbox(given, "start"));
    if (given.has("json")) {
        print_json(result);
    } else {
        print("started " +
              name_of(object_of(with_profile_names(result, here.env.home), "sandbox")) + "\n");
    }
    return static_cast<int>(exit_code::ok);
}

} // namespace

const verb start_verb{
    .name = "start",
    .usage = "start (ID | --task TASK [--profile PROFILE])",
    .summary = "start a stopped sandbox",
    .details = R"(Starts a stopped sandbox and waits until it runs. Commands do that by themselves.

examples:
  deepinfra-sandboxd start --task default
  deepinfra-sandboxd start sb_3fk2
)",
    .flags = choosing_flags(),
    .positionals = 1,
    .run = run,
};

} // namespace sandboxd::cli
