// `stop`: end a sandbox's costs and keep its files.
#include "cli/profiles.hpp"
#include "cli/sandbox_text.hpp"
#include "cli/sandbox_verb.hpp"

namespace sandboxd::cli {
namespace {

int run(const context& here, const arguments& given) {
    json::object params = chosen_sandbox(given, "stop");
    if (given.has("force")) params["force"] = true;
    const json::object result = call_with_progress(here, "sandbox.stop", std::move(params));
    if (given.has("json")) {
        print_json(result);
    } else {
        print("stopped " +
              name_of(object_of(with_profile_names(result, here.env.home), "sandbox")) + "\n");
    }
    return static_cast<int>(exit_code::ok);
}

std::vector<flag> flags() {
    std::vector<flag> all = choosing_flags();
    all.push_back({"force,f", nullptr, "even with commands running, which it kills"});
    return all;
}

} // namespace

const verb stop_verb{
    .name = "stop",
    .usage = "stop [--force] (ID | --task TASK [--profile PROFILE])",
    .summary = "stop a sandbox; /workspace is kept",
    .details =
        R"(Stops a sandbox: it costs nothing then, and /workspace is kept. The next command starts it.

examples:
  deepinfra-sandboxd stop --task default
  deepinfra-sandboxd stop --force sb_3fk2
)",
    .flags = flags(),
    .positionals = 1,
    .run = run,
};

} // namespace sandboxd::cli
