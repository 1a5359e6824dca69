#include "cli/sandbox_text.hpp"

#include "cli/connection.hpp"

#include <algorithm>
#include <cstdio>

namespace sandboxd::cli {
namespace {

paint look_of_state(std::string_view state) {
    if (state == "running") return paint::good;
    if (state == "failed") return paint::bad;
    if (state == "unknown") return paint::warning;
    if (state == "stopped" || state == "absent") return paint::faint;
    return paint::plain; // on its way
}

paint look_of_severity(std::string_view severity) {
    if (severity == "error") return paint::bad;
    if (severity == "warning") return paint::warning;
    return paint::plain;
}

std::string time_or_dash(const json::object& object, std::string_view name) {
    const auto seconds = number_of(object, name);
    return seconds ? human_time(std::chrono::duration<double>(*seconds)) : "-";
}

std::string text_or_dash(const json::object& object, std::string_view name) {
    const std::string_view text = text_of(object, name);
    return text.empty() ? "-" : std::string(text);
}

std::string number_or_dash(const json::object& object, std::string_view name, const char* format) {
    const auto number = number_of(object, name);
    if (!number) return "-";
    char text[32];
    std::snprintf(text, sizeof text, format, *number);
    return text;
}

std::string render_health(const json::array& health, const style& paint_with) {
    std::string text;
    for (const json::value& entry : health) {
        if (!entry.is_object()) continue;
        const json::object& item = entry.get_object();
        const std::string_view severity = text_of(item, "severity");
        text += paint_with(look_of_severity(severity), printable(severity) + ":") + " " +
                printable(text_of(item, "text")) + "\n";
        if (const auto hint = text_of(item, "hint"); !hint.empty()) {
            text += "    " + printable(hint) + "\n";
        }
    }
    return text;
}

std::string dollars(const json::object& money, std::string_view name) {
    char text[32];
    std::snprintf(text, sizeof text, "$%.2f", number_of(money, name).value_or(0));
    return text;
}

std::string render_money(const json::object& money) {
    if (money.empty()) return {}; // an older daemon
    std::string text = "money     " + dollars(money, "rate_usd_per_hour") + " an hour now" +
                       (flag_of(money, "prices_known") ? "" : " (not all prices are known)") +
                       ", " + dollars(money, "today_usd") + " today";
    if (number_of(money, "budget_per_day_usd")) {
        text += " of a budget of " + dollars(money, "budget_per_day_usd");
    }
    if (number_of(money, "saved_today_usd").value_or(0) >= 0.005) {
        text += ", " + dollars(money, "saved_today_usd") + " saved by idle stops";
    }
    return text + "\n";
}

std::string render_orphans(const json::array& orphans, const style& paint_with) {
    if (orphans.empty()) return {};
    table shown({{"STATE"}, {"TASK"}, {"PLAN"}, {"SANDBOX WITHOUT A RECORD"}});
    for (const json::value& entry : orphans) {
        if (!entry.is_object()) continue;
        const json::object& lost = entry.get_object();
        const std::string_view state = text_of(lost, "state");
        shown.row({{state, look_of_state(state)},
                   {text_of(lost, "task"), paint::strong},
                   text_or_dash(lost, "plan"),
                   text_or_dash(lost, "id")});
    }
    return "\n" + shown.render(paint_with);
}

std::string render_account(const json::object& account) {
    std::string text = "account   " + printable(text_of(account, "base_url"));
    if (!flag_of(account, "configured")) return text + ", no API key\n";
    text += ", key " + printable(text_of(account, "fingerprint"));
    const auto most = integer_of(account, "max_active");
    const auto active = integer_of(account, "active");
    if (active && most) {
        text +=
            ", " + std::to_string(*active) + " of " + std::to_string(*most) + " sandboxes active";
    }
    return text + "\n";
}

} // namespace

std::string name_of(const json::object& sandbox) {
    const json::object& key = object_of(sandbox, "key");
    std::string text = "task " + printable(text_of(key, "task"));
    if (text_of(key, "profile") != "default") {
        text += " of profile " + printable(text_of(key, "profile"));
    }
    const std::string_view id = text_of(sandbox, "id");
    return id.empty() ? text : printable(id) + " (" + text + ")";
}

std::string render_sandboxes(const json::array& sandboxes, const style& paint_with) {
    if (sandboxes.empty()) return "no sandboxes\n";
    using enum table::align;
    table shown({{"STATE"},
                 {"TASK"},
                 {"PLAN"},
                 {"IDLE", right},
                 {"RUNNING", right},
                 {"$ AN HOUR", right},
                 {"COST", right},
                 {"SANDBOX"},
                 {"PROFILE"},
                 {"AWAKE BECAUSE"}});
    for (const json::value& entry : sandboxes) {
        if (!entry.is_object()) continue;
        const json::object& sandbox = entry.get_object();
        const json::object& key = object_of(sandbox, "key");
        const std::string_view state = text_of(sandbox, "state");
        const std::size_t running = array_of(sandbox, "running").size();
        std::string plan = text_or_dash(sandbox, "plan");
        if (!flag_of(sandbox, "persistent")) plan += " (ephemeral)";
        shown.row({{state, look_of_state(state)},
                   {text_of(key, "task"), paint::strong},
                   plan,
                   time_or_dash(sandbox, "idle_s"),
                   running == 0 ? "-" : std::to_string(running),
                   number_or_dash(sandbox, "rate_usd_per_hour", "%.4g"),
                   number_of(sandbox, "cost_usd") ? dollars(sandbox, "cost_usd") : "-",
                   text_or_dash(sandbox, "id"),
                   text_of(key, "profile"),
                   text_of(sandbox, "awake_because")});
    }
    return shown.render(paint_with);
}

std::string render_commands(const json::array& execs, const style& paint_with) {
    using enum table::align;
    table shown({{"COMMAND"}, {"TASK"}, {"PHASE"}, {"FOR", right}, {"PROFILE"}});
    bool any = false;
    for (const json::value& entry : execs) {
        if (!entry.is_object()) continue;
        const json::object& command = entry.get_object();
        const std::string_view phase = text_of(command, "phase");
        if (phase == "done") continue;
        any = true;
        const json::object& key = object_of(command, "key");
        shown.row({{text_of(command, "exec_id"), paint::strong},
                   text_of(key, "task"),
                   {phase, phase == "running" ? paint::good : paint::plain},
                   time_or_dash(command, "elapsed_s"),
                   text_of(key, "profile")});
    }
    return any ? shown.render(paint_with) : "";
}

std::string render_status(const json::object& status, const json::array& execs,
                          const style& paint_with, std::string_view our_version) {
    const json::object& daemon = object_of(status, "daemon");
    const std::string_view phase = text_of(daemon, "phase");
    const std::string version(text_of(daemon, "version"));
    std::string text =
        "daemon    " +
        paint_with(phase == "ready" ? paint::good : paint::warning, printable(phase)) +
        ", version " + printable(version) + ", pid " +
        std::to_string(integer_of(daemon, "pid").value_or(0)) + ", up " +
        human_time(std::chrono::duration<double>(number_of(daemon, "uptime_s").value_or(0))) +
        "\n" + render_account(object_of(status, "account")) +
        render_money(object_of(status, "money")) + "\n" +
        render_sandboxes(array_of(status, "sandboxes"), paint_with) +
        render_orphans(array_of(status, "orphans"), paint_with);

    if (const std::string commands = render_commands(execs, paint_with); !commands.empty()) {
        text += "\n" + commands;
    }
    std::string health = render_health(array_of(status, "health"), paint_with);
    if (version != our_version) {
        health += paint_with(paint::warning, "warning:") + " the daemon is version " +
                  printable(version) + ", this command is " + std::string(our_version) +
                  "\n    systemctl --user restart deepinfra-sandboxd\n";
    }
    if (!health.empty()) text += "\n" + health;
    return text;
}

bool degraded(const json::object& status) {
    const json::array& health = array_of(status, "health");
    return text_of(object_of(status, "daemon"), "phase") != "ready" ||
           !flag_of(object_of(status, "account"), "configured") ||
           std::any_of(health.begin(), health.end(), [](const json::value& item) {
               return item.is_object() && text_of(item.get_object(), "severity") == "error";
           });
}

std::string render_plans(const json::object& plans, const style& paint_with) {
    const json::array& all = array_of(plans, "plans");
    if (all.empty()) return "the platform offers no plans\n";
    using enum table::align;
    table shown({{"PLAN"},
                 {"VCPU", right},
                 {"RAM GB", right},
                 {"DISK GB", right},
                 {"$ AN HOUR", right},
                 {""}});
    for (const json::value& entry : all) {
        if (!entry.is_object()) continue;
        const json::object& plan = entry.get_object();
        const bool chosen = text_of(plan, "id") == text_of(plans, "default");
        shown.row({{text_of(plan, "id"), paint::strong},
                   number_or_dash(plan, "vcpu", "%g"),
                   number_or_dash(plan, "ram_gb", "%g"),
                   number_or_dash(plan, "disk_gb", "%g"),
                   number_or_dash(plan, "price_per_hour", "%.4g"),
                   chosen ? "default" : ""});
    }
    return shown.render(paint_with);
}

} // namespace sandboxd::cli
