#include "cli/app.hpp"

#include "cli/verb.hpp"
#include "sys/version.hpp"

#include <unistd.h>

#include <algorithm>

namespace sandboxd::cli {
namespace {

struct group {
    std::string_view heading;
    std::vector<const verb*> verbs;
};

const std::vector<group>& groups() {
    static const std::vector<group> all = {
        {"commands", {&exec_verb, &attach_verb, &cancel_verb}},
        {"files", {&cp_verb}},
        {"sandboxes", {&list_verb, &start_verb, &stop_verb, &terminate_verb, &plans_verb}},
        {"the daemon", {&status_verb, &doctor_verb, &wait_verb}},
    };
    return all;
}

const verb* find_verb(std::string_view name) {
    for (const group& of : groups()) {
        for (const verb* known : of.verbs) {
            if (known->name == name) return known;
        }
    }
    return nullptr;
}

constexpr std::string_view serve_summary = "be the daemon, in the foreground";

std::string version_line() {
    return "deepinfra-sandboxd " + std::string(sys::version()) + "\n";
}

std::string help_line(std::string_view name, std::string_view summary) {
    std::string line = "  " + std::string(name);
    line.resize(14, ' ');
    return line + std::string(summary) + "\n";
}

std::string overview() {
    std::string text = "deepinfra-sandboxd: commands in DeepInfra sandboxes that outlive you\n\n"
                       "usage: deepinfra-sandboxd VERB [OPTION...] [ARGUMENT...]\n";
    for (const group& of : groups()) {
        text += "\n" + std::string(of.heading) + "\n";
        if (&of == &groups().back()) text += help_line("serve", serve_summary);
        for (const verb* known : of.verbs)
            text += help_line(known->name, known->summary);
    }
    text += R"(
Each verb explains itself: deepinfra-sandboxd VERB --help
Options of every verb: --socket PATH, --state-dir PATH (else DEEPINFRA_SANDBOXD_SOCKET,
DEEPINFRA_SANDBOXD_STATE_DIR, or the usual places); a state directory means its own daemon only.
--version tells the version.

exit codes
  exec and attach pass the command's own code on; 124 timed out, 125 daemon or platform failed,
  130 cancelled. The others: 0 ok, 1 error or degraded, 2 usage, 3 daemon not running,
  4 daemon unresponsive or incompatible.

examples
  deepinfra-sandboxd exec -- python3 --version
  deepinfra-sandboxd exec --task build --timeout 10m -- make -C app
  deepinfra-sandboxd status
  deepinfra-sandboxd stop --task build
)";
    return text;
}

std::string serve_help() {
    return R"(usage: deepinfra-sandboxd serve [OPTION...]

Is the daemon, in the foreground, until SIGTERM or SIGINT; sandboxes stay as they are then. The
log goes to stderr. systemd's user units run this.

Each option is also a variable (--idle-stop: DEEPINFRA_SANDBOXD_IDLE_STOP) and a line of
config.ini (idle-stop = 300); a flag counts before a variable, and that before the file. A TIME
is in seconds, or like 250ms, 90s, 5m, 1h, 7d.

The API key comes from DEEPINFRA_API_KEY, systemd's credential deepinfra-api-key, --api-key-file
or the file api-key in the state directory, in this order; never by flag, where all can see it.

options:
)" + sys::describe_options() +
           "  -h, --help\n        this text\n";
}

int run_serve(const std::vector<std::string>& given, const sys::environment& env,
              serve_function serve) {
    if (std::find(given.begin(), given.end(), "--help") != given.end() ||
        std::find(given.begin(), given.end(), "-h") != given.end()) {
        print(serve_help());
        return static_cast<int>(exit_code::ok);
    }
    const sys::settings settings = [&] {
        try {
            return sys::load_settings(given, env);
        } catch (const sys::config_error& error) {
            throw usage_error(error.what(), "serve");
        }
    }();
    return serve(settings);
}

bool wants_colour(const sys::environment& env, int fd) {
    return ::isatty(fd) == 1 && !env.get("NO_COLOR") && env.get("TERM").value_or("dumb") != "dumb";
}

int run_verb(const verb& chosen, const std::vector<std::string>& given,
             const sys::environment& env) {
    const arguments parsed = parse(chosen, given);
    if (parsed.has("help")) {
        print(help(chosen));
        return static_cast<int>(exit_code::ok);
    }
    const auto path = [&](const char* name) {
        const auto text = parsed.value(name);
        return text ? std::optional<std::filesystem::path>(*text) : std::nullopt;
    };
    const context here{
        .env = env,
        .where = sys::load_client_settings(path("socket"), path("state-dir"), env),
        .out = style(wants_colour(env, STDOUT_FILENO)),
        .err = style(wants_colour(env, STDERR_FILENO)),
        .out_is_terminal = ::isatty(STDOUT_FILENO) == 1,
        .err_is_terminal = ::isatty(STDERR_FILENO) == 1,
    };
    return chosen.run(here, parsed);
}

} // namespace

int run(const std::vector<std::string>& given, const sys::environment& env, serve_function serve) {
    const std::string name = given.empty() ? "" : given.front();
    const verb* chosen = find_verb(name);
    // exec's codes below 124 are its command's.
    const bool is_exec = chosen != nullptr && chosen->failed == exit_code::failed;
    const auto report = [&](const failure& why) {
        const std::string text = render_failure(why, style(wants_colour(env, STDERR_FILENO)),
                                                is_exec ? "deepinfra-sandboxd: " : "");
        (void)!::write(STDERR_FILENO, text.data(), text.size());
        return static_cast<int>(is_exec ? exit_code::failed : why.code());
    };
    try {
        if (name == "--version") {
            print(version_line());
            return static_cast<int>(exit_code::ok);
        }
        if (name == "--help" || name == "-h" || name == "help") {
            const verb* explained = given.size() > 1 ? find_verb(given[1]) : nullptr;
            const bool serve_explained = given.size() > 1 && given[1] == "serve";
            print(explained != nullptr ? help(*explained)
                  : serve_explained    ? serve_help()
                                       : overview());
            return static_cast<int>(exit_code::ok);
        }
        const std::vector<std::string> rest(given.begin() + (given.empty() ? 0 : 1), given.end());
        if (name == "serve") return run_serve(rest, env, serve);
        if (chosen != nullptr) return run_verb(*chosen, rest, env);
        throw usage_error(name.empty() ? "no verb given" : "there is no verb \"" + name + "\"", "");
    } catch (const failure& why) {
        return report(why);
    } catch (const sys::config_error& error) {
        return report(failure(exit_code::usage, error.what()));
    } catch (const std::exception& error) {
        return report(failure(exit_code::error, error.what()));
    }
}

} // namespace sandboxd::cli
