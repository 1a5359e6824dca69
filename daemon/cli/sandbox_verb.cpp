#include "cli/sandbox_verb.hpp"

#include "cli/notices.hpp"
#include "cli/profiles.hpp"

namespace sandboxd::cli {

json::object chosen_sandbox(const arguments& given, std::string_view verb) {
    const bool by_id = !given.positionals().empty();
    const bool by_key = given.has("task") || given.has("profile");
    if (by_id && by_key) {
        throw usage_error("give the sandbox's id or its task, not both", std::string(verb));
    }
    if (by_id) return {{"id", given.positionals().front()}};
    if (!by_key) {
        throw usage_error("which sandbox? Give its id or --task", std::string(verb));
    }
    return {{"key", key_of(given)}};
}

const std::vector<flag>& choosing_flags() {
    static const std::vector<flag> flags = {
        {"task,t", "TASK", "the sandbox of this task"},
        {"profile,p", "PROFILE", "whose task [default: default]"},
        {"json", nullptr, "one JSON object: the daemon's answer"},
    };
    return flags;
}

json::object call_with_progress(const context& here, std::string_view method, json::object params) {
    params = with_real_profile(here, std::move(params), method.substr(method.find('.') + 1));
    connection daemon = here.connect_with_key();
    notices terminal(here.err_is_terminal);
    daemon.on_notification = [&](std::string_view name, const json::object& news) {
        if (name == "sandbox.progress") terminal.progress(news);
    };
    return daemon.call(method, std::move(params));
}

} // namespace sandboxd::cli
