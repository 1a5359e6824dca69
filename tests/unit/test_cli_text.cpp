// What people see: escaping, tables, times, the status page.
#include "cli/sandbox_text.hpp"
#include "cli/text.hpp"

#include <boost/json/parse.hpp>
#include <doctest/doctest.h>

using namespace sandboxd::cli;

namespace {

const style plain(false);

json::object parse_object(const char* text) {
    return json::parse(text).as_object();
}

json::object a_status() {
    return parse_object(R"({
        "daemon": {"version": "0.1.0", "pid": 4711, "uptime_s": 3725.2, "instance": "b6f1",
                   "phase": "ready", "socket": "/run/s", "state_dir": "/s"},
        "account": {"configured": true, "base_url": "https://api.deepinfra.com",
                    "fingerprint": "5c1f0a9be2d34c77", "max_active": 5, "active": 1},
        "sandboxes": [
            {"key": {"profile": "default", "task": "default"}, "id": "sb_3fk2", "state": "running",
             "plan": "medium", "persistent": true, "generation": 2, "idle_s": 12.3,
             "running": ["a", "b"], "awake_because": "2 commands are running",
             "created_at": 1764400000, "holders": 1, "rate_usd_per_hour": 0.04, "cost_usd": 1.234},
            {"key": {"profile": "/home/ada/.hermes", "task": "session:42"}, "id": null,
             "state": "absent", "plan": "", "persistent": false, "generation": 0, "idle_s": null,
             "running": [], "awake_because": null, "created_at": null, "holders": 0,
             "rate_usd_per_hour": null}],
        "money": {"rate_usd_per_hour": 0.04, "prices_known": true, "today_usd": 0.5,
                  "total_usd": 20, "saved_today_usd": 0.1, "saved_usd": 9,
                  "budget_per_day_usd": 5},
        "orphans": [{"id": "sb_lost", "state": "stopped", "plan": "large", "task": "old",
                     "key": null, "persistent": true, "created_at": null}],
        "health": [{"code": "retention", "severity": "warning", "text": "It goes soon.",
                    "hint": "start it"}],
        "counters": {}})");
}

} // namespace

TEST_CASE("printable: nothing that comes from elsewhere reaches the terminal as a command") {
    CHECK(printable("plain text, caf\u00e9, \u65e5\u672c") ==
          "plain text, caf\u00e9, \u65e5\u672c");
    CHECK(printable("\x1b[2J\a\n\t\x7f") == "\\x1b[2J\\x07\\x0a\\x09\\x7f");
    CHECK(printable("\u009b31m") == "\\u{9b}31m"); // the one-character CSI
    CHECK(printable("a\u202eb\u2066c") == "a\\u{202e}b\\u{2066}c");
    CHECK(printable("a\xff\xc3z") == "a\\xff\\xc3z");
    CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
}

TEST_CASE("cut_to keeps whole characters, and says that there is more") {
    CHECK(cut_to(5, "abcde") == "abcde");
    CHECK(cut_to(5, "abcdef") == "ab...");
    CHECK(cut_to(2, "abcdef") == "..");
    CHECK(cut_to(0, "a") == "");
    CHECK(cut_to(4, "\u65e5\u672c\u8a9e") == "..."); // the first takes two columns
    CHECK(cut_to(5, "\u65e5\u672c\u8a9e") == "\u65e5...");
    CHECK(cut_to(4, "caf\u00e9s") == "c...");
    CHECK(cut_to(5, "caf\u00e9s") == "caf\u00e9s");
}

TEST_CASE("display_width counts columns, not bytes") {
    CHECK(display_width("abc") == 3);
    CHECK(display_width("caf\u00e9") == 4);
    CHECK(display_width("\u65e5\u672c") == 4);
    CHECK(display_width("e\u0301") == 1);
}

TEST_CASE("a table is aligned, escaped, and has no trailing blanks") {
    table shown({{"NAME"}, {"N", table::align::right}, {"NOTE"}});
    shown.row({"\u65e5\u672c", "7", ""});
    shown.row({"a\nb", "12", "x"});
    CHECK(shown.render(plain) == "NAME     N  NOTE\n"
                                 "\u65e5\u672c     7\n"
                                 "a\\x0ab  12  x\n");
}

TEST_CASE("colour wraps the text and not the padding") {
    table shown({{"A"}, {"B"}});
    shown.row({{"x", paint::good}, "y"});
    CHECK(shown.render(style(true)) == "\x1b[2mA\x1b[0m  \x1b[2mB\x1b[0m\n\x1b[32mx\x1b[0m  y\n");
}

TEST_CASE("times for people") {
    const auto shown = [](double seconds) {
        return human_time(std::chrono::duration<double>(seconds));
    };
    CHECK(shown(0.9) == "0s");
    CHECK(shown(59) == "59s");
    CHECK(shown(60) == "1m");
    CHECK(shown(725) == "12m 5s");
    CHECK(shown(3725) == "1h 2m");
    CHECK(shown(187200) == "2d 4h");
    CHECK(shown(-1) == "0s");
}

TEST_CASE("status: the whole page") {
    CHECK(render_status(a_status(), {}, plain, "0.1.0") ==
          R"(daemon    ready, version 0.1.0, pid 4711, up 1h 2m
account   https://api.deepinfra.com, key 5c1f0a9be2d34c77, 1 of 5 sandboxes active
money     $0.04 an hour now, $0.50 today of a budget of $5.00, $0.10 saved by idle stops

STATE    TASK        PLAN           IDLE  RUNNING  $ AN HOUR   COST  SANDBOX  PROFILE            AWAKE BECAUSE
running  default     medium          12s        2       0.04  $1.23  sb_3fk2  default            2 commands are running
absent   session:42  - (ephemeral)     -        -          -      -  -        /home/ada/.hermes

STATE    TASK  PLAN   SANDBOX WITHOUT A RECORD
stopped  old   large  sb_lost

warning: It goes soon.
    start it
)");
}

TEST_CASE("status: a fresh daemon without a key") {
    json::object status = a_status();
    status["account"] = {{"configured", false},
                         {"base_url", "https://api.deepinfra.com"},
                         {"fingerprint", nullptr},
                         {"max_active", 5},
                         {"active", nullptr}};
    status["sandboxes"] = json::array();
    status["health"] = json::array();
    status.erase("money"); // as of a daemon that does not count it
    status.erase("orphans");
    CHECK(render_status(status, {}, plain, "0.1.0") ==
          R"(daemon    ready, version 0.1.0, pid 4711, up 1h 2m
account   https://api.deepinfra.com, no API key

no sandboxes
)");
}

TEST_CASE("status: a daemon of another version is pointed out") {
    const std::string page = render_status(a_status(), {}, plain, "0.2.0");
    CHECK(page.find("the daemon is version 0.1.0, this command is 0.2.0") != std::string::npos);
}

TEST_CASE("status: what is missing or of another type does no harm") {
    CHECK_NOTHROW(render_status({}, {}, plain, "0.1.0"));
    CHECK_NOTHROW(render_status(parse_object(R"({"daemon": 1, "account": [], "sandboxes": [1, {}],
        "health": [null, {"severity": 3}]})"),
                                {1, json::object(), {{"exec_id", 5}, {"key", nullptr}}}, plain,
                                "0.1.0"));
}

TEST_CASE("status: commands under way stand between the sandboxes and what needs attention") {
    const auto command = [](const char* id, const char* phase, double elapsed) {
        return json::object{{"exec_id", id},
                            {"key", {{"profile", "default"}, {"task", "t"}}},
                            {"phase", phase},
                            {"elapsed_s", elapsed}};
    };
    json::object status = a_status();
    status["sandboxes"] = json::array();
    status.erase("orphans");
    const std::string page = render_status(
        status,
        {command("cli-1", "done", 3), command("cli-2", "running", 725), command("3", "queued", 1)},
        plain, "0.1.0");
    CHECK(page.substr(page.find("\nno ")) == R"(
no sandboxes

COMMAND  TASK  PHASE       FOR  PROFILE
cli-2    t     running  12m 5s  default
3        t     queued       1s  default

warning: It goes soon.
    start it
)");
}

TEST_CASE("degraded: when commands cannot run as they should") {
    CHECK(!degraded(a_status())); // a warning is not an error
    json::object status = a_status();
    SUBCASE("an error") {
        status["health"].as_array()[0].as_object()["severity"] = "error";
        CHECK(degraded(status));
    }
    SUBCASE("no key") {
        status["account"].as_object()["configured"] = false;
        CHECK(degraded(status));
    }
    SUBCASE("not ready") {
        status["daemon"].as_object()["phase"] = "recovering";
        CHECK(degraded(status));
    }
}

TEST_CASE("plans") {
    const json::object plans = parse_object(R"({"default": "large", "plans": [
        {"id": "medium", "vcpu": 2, "ram_gb": 4, "disk_gb": 10, "price_per_hour": 0.05},
        {"id": "large", "vcpu": 4, "ram_gb": 8.5, "disk_gb": null, "price_per_hour": 0.1}]})");
    CHECK(render_plans(plans, plain) == R"(PLAN    VCPU  RAM GB  DISK GB  $ AN HOUR
medium     2       4       10       0.05
large      4     8.5        -        0.1  default
)");
}

TEST_CASE("sandboxes by name") {
    CHECK(name_of(parse_object(R"({"id": "sb_1", "key": {"profile": "default", "task": "t"}})")) ==
          "sb_1 (task t)");
    CHECK(name_of(parse_object(R"({"id": null, "key": {"profile": "p", "task": "t\u001b"}})")) ==
          "task t\\x1b of profile p");
}
