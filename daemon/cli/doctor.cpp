// `doctor`: looks at everything that has to be right, says what is not, and repairs what it may.
//
// Asks the daemon, and the cloud through it; looks at the machine itself. Changes nothing without
// --fix, and with it only sandboxes that the daemon made and lost the record of.
#include "cli/profiles.hpp"
#include "cli/sandbox_text.hpp"
#include "cli/verb.hpp"
#include "sys/version.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>

namespace sandboxd::cli {
namespace {

namespace fs = std::filesystem;

enum class verdict { good, warning, bad, info };

class report {
public:
    report(const style& paint_with, bool as_json) : paint_(paint_with), as_json_(as_json) {}

    void add(verdict how, std::string_view what, const std::string& text,
             const std::string& hint = {}) {
        failed_ = failed_ || how == verdict::bad;
        checks_.push_back(json::object{
            {"check", what}, {"verdict", name_of(how)}, {"text", text}, {"hint", hint}});
        if (as_json_) {
            return;
        }
        std::string line = paint_(look_of(how), name_of(how));
        line.resize(line.size() + 9 - std::min<std::size_t>(name_of(how).size(), 8), ' ');
        line += std::string(what) + ": " + printable(text) + "\n";
        if (!hint.empty()) {
            line += "         " + printable(hint) + "\n";
        }
        print(line);
    }

    int finish() const {
        if (as_json_) {
            print_json(json::object{{"ok", !failed_}, {"checks", checks_}});
        }
        return static_cast<int>(failed_ ? exit_code::error : exit_code::ok);
    }

private:
    static std::string_view name_of(verdict how) {
        switch (how) {
        case verdict::good:
            return "ok";
        case verdict::warning:
            return "warning";
        case verdict::bad:
            return "error";
        case verdict::info:
            return "info";
        }
        return "info";
    }
    static paint look_of(verdict how) {
        switch (how) {
        case verdict::good:
            return paint::good;
        case verdict::warning:
            return paint::warning;
        case verdict::bad:
            return paint::bad;
        case verdict::info:
            return paint::faint;
        }
        return paint::plain;
    }

    style paint_;
    bool as_json_;
    bool failed_ = false;
    json::array checks_;
};

void check_directory(report& out, std::string_view what, const fs::path& directory) {
    struct stat status {};
    if (::stat(directory.c_str(), &status) != 0) {
        out.add(verdict::info, what, directory.string() + " does not exist yet",
                "the daemon makes it when it starts");
        return;
    }
    if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
        out.add(verdict::bad, what, directory.string() + " is not a directory of yours");
        return;
    }
    if ((status.st_mode & 077) != 0) {
        out.add(verdict::warning, what, directory.string() + " can be looked into by others",
                "chmod 700 " + directory.string());
        return;
    }
    if (::access(directory.c_str(), W_OK | X_OK) != 0) {
        out.add(verdict::bad, what, directory.string() + " cannot be written to",
                "make it writable, and see whether its disk is mounted read-only");
        return;
    }
    std::error_code error;
    const fs::space_info space = fs::space(directory, error);
    constexpr std::uintmax_t wanted = 16U << 20;
    if (!error && space.available < wanted) {
        out.add(verdict::bad, what,
                directory.string() + " has only " + std::to_string(space.available >> 20) +
                    " MiB left",
                "free some space: what is not written down first is not created");
        return;
    }
    out.add(verdict::good, what, directory.string());
}

// Whether something would bring the daemon back after a crash or a reboot.
void check_service(report& out, const sys::environment& env) {
    const char* const names[] = {"deepinfra-sandboxd.socket", "deepinfra-sandboxd.service"};
    const fs::path config = env.get("XDG_CONFIG_HOME") ? fs::path(*env.get("XDG_CONFIG_HOME"))
                                                       : fs::path(env.home) / ".config";
    for (const char* name : names) {
        for (const char* target : {"sockets.target.wants", "default.target.wants"}) {
            std::error_code error;
            if (fs::exists(fs::symlink_status(config / "systemd/user" / target / name, error))) {
                out.add(verdict::good, "systemd", std::string(name) + " is enabled");
                return;
            }
        }
    }
    out.add(verdict::info, "systemd", "the user units are not enabled",
            "systemctl --user enable --now deepinfra-sandboxd.socket deepinfra-sandboxd.service");
}

void check_key(report& out, connection& daemon, const json::object& status) {
    const json::object& account = object_of(status, "account");
    if (!flag_of(account, "configured")) {
        return; // health says so
    }
    try {
        const json::object plans = daemon.call("plan.list", {});
        out.add(verdict::good, "cloud",
                std::string(text_of(account, "base_url")) + " takes the key " +
                    std::string(text_of(account, "fingerprint")) + " and offers " +
                    std::to_string(array_of(plans, "plans").size()) + " plans");
    } catch (const failure& why) {
        if (why.name().empty()) {
            throw; // the daemon, not the cloud
        }
        out.add(verdict::bad, "cloud", why.what(), why.hint());
    }
}

void check_health(report& out, const json::object& status) {
    for (const json::value& entry : array_of(status, "health")) {
        const json::object& item = entry.as_object();
        const std::string_view severity = text_of(item, "severity");
        out.add(severity == "error"     ? verdict::bad
                : severity == "warning" ? verdict::warning
                                        : verdict::info,
                text_of(item, "code"), std::string(text_of(item, "text")),
                std::string(text_of(item, "hint")));
    }
}

// The key an orphan was made for: the daemon's guess, or one of the profiles named.
std::optional<json::object> adopt(connection& daemon, const json::object& lost,
                                  const std::vector<std::string>& profiles) {
    std::vector<json::object> keys;
    if (const json::value* known = lost.if_contains("key");
        known != nullptr && known->is_object()) {
        keys.push_back(known->get_object());
    }
    for (const std::string& profile : profiles) {
        keys.push_back({{"profile", profile}, {"task", text_of(lost, "task")}});
    }
    for (const json::object& key : keys) {
        try {
            return daemon.call("orphan.adopt", {{"id", text_of(lost, "id")}, {"key", key}});
        } catch (const failure& why) {
            if (why.name() != "invalid_params") { // of another profile
                throw;
            }
        }
    }
    return std::nullopt;
}

// What to do about lost sandboxes, as the command line says.
struct orders {
    bool fix = false;
    std::vector<std::string> profiles;  // that some may belong to
    std::vector<std::string> terminate; // ids
};

std::string how_to_delete(const json::object& lost) {
    return "deepinfra-sandboxd doctor --fix --terminate " + std::string(text_of(lost, "id")) +
           " deletes it and its files";
}

// What a deletion would end, for people; `nothing` tells whether that is nothing.
std::string what_runs_in(connection& daemon, const json::object& lost, bool& nothing) {
    const json::object found = daemon.call("orphan.inspect", {{"id", text_of(lost, "id")}});
    const std::string text(text_of(found, "text"));
    nothing = text_of(found, "inside") == "nothing";
    if (nothing) {
        return "nothing runs in it";
    }
    return (text_of(found, "inside") == "running" ? "in it runs: "
                                                  : "what runs in it is not known: ") +
           text;
}

void preview_orphan(report& out, const json::object& lost, const orders& given, bool to_be_deleted,
                    const std::string& what, const std::string& name) {
    const json::value* known = lost.if_contains("key");
    if (to_be_deleted) {
        out.add(verdict::info, what, name + ": with --fix it is deleted, with its files");
    } else if (!flag_of(lost, "persistent")) {
        out.add(verdict::info, what,
                name + " of a single session: --fix deletes it, if nothing runs in it",
                how_to_delete(lost) + ", whatever runs in it");
    } else if (known != nullptr && known->is_object()) {
        out.add(verdict::info, what, name + ": --fix adopts it");
    } else {
        out.add(verdict::info, what,
                name + " of a profile that the daemon does not know: --fix " +
                    (given.profiles.empty() ? "leaves it alone"
                                            : "adopts it if it is of a profile named here"),
                "name its profile with --profile to have it adopted; " + how_to_delete(lost));
    }
}

// Deletes only what was named, and what was made for a single session and does nothing.
void mend_orphan(report& out, connection& daemon, const json::object& lost, const orders& given) {
    const std::string id(text_of(lost, "id"));
    const std::string what = "orphan " + id;
    const std::string name = std::string(text_of(lost, "state")) + ", made for the task \"" +
                             std::string(text_of(lost, "task")) + "\"";
    const bool to_be_deleted =
        std::find(given.terminate.begin(), given.terminate.end(), id) != given.terminate.end();
    if (!given.fix) {
        preview_orphan(out, lost, given, to_be_deleted, what, name);
        return;
    }
    try {
        if (!to_be_deleted && flag_of(lost, "persistent")) {
            if (const std::optional<json::object> adopted = adopt(daemon, lost, given.profiles)) {
                out.add(verdict::good, what,
                        "adopted as " + name_of(object_of(*adopted, "sandbox")));
            } else {
                out.add(verdict::warning, what,
                        name + " of a profile that the daemon does not know: left alone",
                        "name its profile with --profile to have it adopted; " +
                            how_to_delete(lost));
            }
            return;
        }
        bool nothing = false;
        const std::string inside = what_runs_in(daemon, lost, nothing);
        if (!to_be_deleted && !nothing) {
            out.add(verdict::warning, what, name + ": left alone, " + inside, how_to_delete(lost));
            return;
        }
        out.add(verdict::info, what, name + ": " + inside + "; deleting it");
        daemon.call("orphan.terminate", {{"id", id}});
        out.add(verdict::good, what, name + ": deleted");
    } catch (const failure& why) {
        if (why.name().empty()) {
            throw;
        }
        if (why.name() == "sandbox_busy") { // its key has another: a person decides which to keep
            out.add(verdict::warning, what, name + ": left alone, " + why.what(),
                    how_to_delete(lost));
            return;
        }
        out.add(verdict::bad, what, why.what(), why.hint());
    }
}

// A slip in an id must not look like a deletion.
void check_named(report& out, const json::array& orphans, const orders& given) {
    for (const std::string& id : given.terminate) {
        const bool there =
            std::any_of(orphans.begin(), orphans.end(), [&](const json::value& each) {
                return text_of(each.as_object(), "id") == id;
            });
        if (!there) {
            out.add(verdict::bad, "orphan " + id,
                    "no sandbox without a record has this id; nothing was done",
                    "deepinfra-sandboxd status lists them; deepinfra-sandboxd terminate ends one "
                    "that has a record");
        }
    }
}

int run(const context& here, const arguments& given) {
    if (given.has("terminate") && !given.has("fix")) {
        throw usage_error("--terminate goes with --fix; nothing was done", "doctor");
    }
    report out(here.out, given.has("json"));
    out.add(verdict::info, "version", std::string(sys::version()));
    check_directory(out, "state directory", here.where.state_dir);
    check_service(out, here.env);
    try {
        connection daemon = here.connect();
        const json::object status = daemon.call("daemon.status", {});
        const json::object& about = object_of(status, "daemon");
        const std::string version(text_of(about, "version"));
        out.add(version == sys::version() ? verdict::good : verdict::warning, "daemon",
                "version " + version + ", pid " +
                    std::to_string(integer_of(about, "pid").value_or(0)) + ", " +
                    std::string(text_of(about, "phase")),
                version == sys::version() ? "" : "systemctl --user restart deepinfra-sandboxd");
        out.add(verdict::good, "socket", daemon.socket().string());
        check_key(out, daemon, status);
        // Again: the question above may have changed what the daemon knows of key and network.
        const json::object after = daemon.call("daemon.status", {});
        check_health(out, after);
        orders what_to_do{given.has("fix"), {}, given.values("terminate")};
        for (const std::string& profile : given.values("profile"))
            what_to_do.profiles.push_back(real_profile(here, profile, "doctor"));
        check_named(out, array_of(after, "orphans"), what_to_do);
        for (const json::value& entry : array_of(after, "orphans")) {
            mend_orphan(out, daemon, entry.as_object(), what_to_do);
        }
    } catch (const failure& why) {
        out.add(verdict::bad, "daemon", why.what(), why.hint());
    }
    return out.finish();
}

} // namespace

const verb doctor_verb{
    .name = "doctor",
    .usage = "doctor [--fix [--terminate ID...]] [OPTION...]",
    .summary = "find out what is wrong, and repair what can be",
    .details =
        R"(Looks at the state directory, the user units, the daemon, its socket, the key and the cloud, and
repeats what `status` warns of.

Sandboxes that the daemon made and lost the record of (its state file was lost) are listed. With
--fix each whose profile and task are known is adopted again as the sandbox of its task, and one
that was made for a single session is deleted if nothing runs in it. All others are left alone;
--terminate deletes the one that is named, with its files, and says what ran in it. Nothing else is
ever touched.

exit codes:
  0 nothing is wrong; 1 something is, or the daemon does not run

examples:
  deepinfra-sandboxd doctor
  deepinfra-sandboxd doctor --fix --profile ~/.hermes
  deepinfra-sandboxd doctor --fix --terminate sb_3fk2
)",
    .flags = {{"fix", nullptr, "adopt sandboxes whose record was lost"},
              {"terminate", "ID", "a lost sandbox to be deleted, with --fix; may be repeated",
               true},
              {"profile,p", "PROFILE", "one that lost sandboxes may belong to; may be repeated",
               true},
              {"json", nullptr, "one JSON object: {ok, checks: [{check, verdict, text, hint}]}"}},
    .run = run,
};

} // namespace sandboxd::cli
