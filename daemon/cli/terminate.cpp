// `terminate`: end a sandbox for good, files and all.
#include "cli/sandbox_verb.hpp"

namespace sandboxd::cli {
namespace {

int run(const context& here, const arguments& given) {
    json::object params = chosen_sandbox(given, "terminate");
    if (given.has("force")) params["force"] = true;
    const json::object result = call_with_progress(here, "sandbox.terminate", std::move(params));
    if (given.has("json")) {
        print_json(result);
    } else {
        print("terminated " + printable(text_of(result, "sandbox_id")) + "\n");
    }
    return static_cast<int>(exit_code::ok);
}

std::vector<flag> flags() {
    std::vector<flag> all = choosing_flags();
    all.push_back({"force,f", nullptr, "even with commands running, which it kills"});
    return all;
}

} // namespace

const verb terminate_verb{
    .name = "terminate",
    .usage = "terminate [--force] (ID | --task TASK [--profile PROFILE])",
    .summary = "end a sandbox for good, /workspace and all",
    .details =
        R"(Ends a sandbox for good: everything in it is lost, /workspace too. The next command of its
task gets a new, empty one.

examples:
  deepinfra-sandboxd terminate --task scratch
  deepinfra-sandboxd terminate --force sb_3fk2
)",
    .flags = flags(),
    .positionals = 1,
    .run = run,
};

} // namespace sandboxd::cli
