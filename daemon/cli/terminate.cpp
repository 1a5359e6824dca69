// `terminate`: end a sandbox for good, files and all; or give up one that only another account can
// end.
#include "cli/sandbox_verb.hpp"

namespace sandboxd::cli {
namespace {

int forget(const context& here, const arguments& given) {
    if (given.has("force")) {
        throw usage_error("--forget ends nothing, so there is nothing to force", "terminate");
    }
    const json::object result =
        call_with_progress(here, "sandbox.forget", chosen_sandbox(given, "terminate"));
    if (given.has("json")) {
        print_json(result);
    } else {
        const std::string id(text_of(result, "sandbox_id"));
        print(id.empty() ? "forgotten: a creation in doubt; should it have made a sandbox, that is "
                           "not looked after\n"
                         : "forgotten: " + printable(id) +
                               " was not deleted, and is not looked after any more\n");
    }
    return static_cast<int>(exit_code::ok);
}

int run(const context& here, const arguments& given) {
    if (given.has("forget")) return forget(here, given);
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
    all.push_back({"forget", nullptr, "only give it up, if it is another account's"});
    return all;
}

} // namespace

const verb terminate_verb{
    .name = "terminate",
    .usage = "terminate [--force | --forget] (ID | --task TASK [--profile PROFILE])",
    .summary = "end a sandbox for good, /workspace and all",
    .details =
        R"(Ends a sandbox for good: everything in it is lost, /workspace too. The next command of its
task gets a new, empty one.

A sandbox that was made with the key of another account cannot be ended with this one, and its task
cannot be used. If that account is gone for good, --forget gives the sandbox up: it is not deleted,
and nobody looks after it any more.

examples:
  deepinfra-sandboxd terminate --task scratch
  deepinfra-sandboxd terminate --force sb_3fk2
)",
    .flags = flags(),
    .positionals = 1,
    .run = run,
};

} // namespace sandboxd::cli
