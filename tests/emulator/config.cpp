// The table of settings; see config.hpp.
#include "config.hpp"

#include <boost/json.hpp>

#include <sstream>
#include <stdexcept>
#include <variant>

namespace json = boost::json;

namespace emulator {

namespace {

using member =
    std::variant<bool config::*, std::int64_t config::*, double config::*, std::string config::*>;

struct setting {
    std::string_view name;
    member where;
    std::string_view choices; // of a text, separated by |; empty: free
    std::string_view meaning;
};

const setting settings[] = {
    {"boot_ms", &config::boot_ms, "",
     "creating -> running takes this long (plus the real work, some ms)"},
    {"start_ms", &config::start_ms, "", "starting -> running"},
    {"stop_ms", &config::stop_ms, "", "stopping -> stopped; processes are killed when it begins"},
    {"boot_outcome", &config::boot_outcome, "ok|fail|hang",
     "what becomes of a create: running, failed, creating for ever"},
    {"start_outcome", &config::start_outcome, "ok|fail|hang", "the same for a start"},
    {"stop_outcome", &config::stop_outcome, "ok|hang", "hang: stopping for ever"},
    {"boot_via_starting", &config::boot_via_starting, "",
     "creating -> starting (start_ms) -> running"},
    {"max_active", &config::max_active, "", "cap of creating+starting+running+stopping an account"},
    {"idle_check", &config::idle_check, "",
     "stop sandboxes idle for their timeout_seconds, counted from when the last call finished"},
    {"default_idle_s", &config::default_idle_s, "", "for timeout_seconds 0"},
    {"running_cap_s", &config::running_cap_s, "", "continuous running, then stopped"},
    {"stopped_keep_s", &config::stopped_keep_s, "", "stopped, then deleted"},
    {"deleted_keep_s", &config::deleted_keep_s, "", "readable as deleted, then 404"},
    {"time_scale", &config::time_scale, "",
     "the four limits above and timeout_seconds pass this much faster"},
    {"get_counts_as_call", &config::get_counts_as_call, "",
     "(?) a GET of the sandbox object restarts the idle clock"},
    {"list_deleted", &config::list_deleted, "", "(?) deleted sandboxes appear in the listing"},
    {"stop_when_stopped", &config::stop_when_stopped, "409|200",
     "(?) answer to stop when stopped or stopping"},
    {"start_when_running", &config::start_when_running, "409|200",
     "(?) answer to start when running or starting"},
    {"stop_when_booting", &config::stop_when_booting, "409|200",
     "(?) answer to stop while creating or starting"},
    {"delete_when_deleted", &config::delete_when_deleted, "404|409|200",
     "(?) answer to a second DELETE"},
    {"deleted_call_status", &config::deleted_call_status, "404|409",
     "(?) answer to start, stop, exec, fs when deleted"},
    {"unknown_plan", &config::unknown_plan, "400|404|422",
     "(?) answer to a create with a plan that the catalog lacks"},
    {"id_style", &config::id_style, "plain|odd",
     "odd: ids with characters that must be percent-encoded in a path segment"},
    {"pagination", &config::pagination, "none|link|offset",
     "(?) listing: all at once; pages with a Link rel=next header; silently limit/offset pages"},
    {"page_size", &config::page_size, "", "for pagination"},
    {"scratch_mb", &config::scratch_mb, "",
     "size of /tmp, of /root and of the rest, each, of sandboxes booted from now on"},
    {"default_timeout_s", &config::default_timeout_s, "", "exec timeout_seconds 0"},
    {"command_cap_s", &config::command_cap_s, "", "server-side cap of every command"},
    {"timeout_over_cap", &config::timeout_over_cap, "clamp|reject",
     "(?) timeout_seconds above the cap"},
    {"timeout_outcome", &config::timeout_outcome, "error|returncode|cut",
     "how a timed out stream ends: error line, returncode 124, no terminal line"},
    {"timeout_kill", &config::timeout_kill, "group|tree|none", "what a time-out kills"},
    {"cap_outcome", &config::cap_outcome, "error|returncode|cut", "(?) the same at the cap"},
    {"cap_kill", &config::cap_kill, "group|tree|none", "(?) the same at the cap"},
    {"stop_outcome_of_streams", &config::stop_outcome_of_streams, "error|returncode|cut",
     "(?) how the stream of a command ends whose sandbox stops: error line, returncode 137, no "
     "terminal line"},
    {"on_disconnect", &config::on_disconnect, "keep|kill_group|kill_tree",
     "(?) what happens to the command of a dropped connection"},
    {"on_disconnect_output", &config::on_disconnect_output, "drain|close|block",
     "(?) what becomes of the output of a kept command"},
    {"waits_for_children", &config::waits_for_children, "",
     "(?) exec ends only when nobody holds its stdout and stderr any more"},
    {"leftover_output", &config::leftover_output, "close|drain",
     "(?) pipes held by children of an ended command: SIGPIPE, or thrown away"},
    {"missing_argv0", &config::missing_argv0, "127|126|1|error",
     "(?) how argv[0] that does not exist is reported"},
    {"not_executable_argv0", &config::not_executable_argv0, "127|126|1|error",
     "(?) ... that may not be executed"},
    {"too_long_argv", &config::too_long_argv, "error|127|126|1",
     "(?) ... when the kernel says E2BIG"},
    {"signal_returncode", &config::signal_returncode, "shell|negative|minus_one",
     "(?) ended by signal 9: 137, -9, -1"},
    {"split_characters", &config::split_characters, "replace|join",
     "(?) characters split between two reads"},
    {"replacement", &config::replacement, "subpart|byte",
     "(?) one U+FFFD a maximal broken part, or one a byte"},
    {"chunk_bytes", &config::chunk_bytes, "",
     "most bytes of one output line, 1 to 1048576; 1 cuts every character"},
    {"output_limit_bytes", &config::output_limit_bytes, "",
     "(?) output that ends a command with an error line; 0 = no limit"},
    {"output_limit_kill", &config::output_limit_kill, "group|tree|none", "(?) what is killed then"},
    {"heartbeat_ms", &config::heartbeat_ms, "", "{} after so long without a line; 0 = never"},
    {"default_cwd", &config::default_cwd, "", "(?) working directory of a command"},
    {"file_limit_bytes", &config::file_limit_bytes, "",
     "fs/content a call, either way; over it 413"},
    {"put_mode", &config::put_mode, "", "(?) octal mode of a file made by PUT"},
    {"put_replace", &config::put_replace, "truncate|rename",
     "(?) PUT writes into the old file (a running program: 500), or beside it"},
    {"fs_when_not_running", &config::fs_when_not_running, "409|allow",
     "(?) fs/content of a sandbox that does not run"},
    {"latency_ms", &config::latency_ms, "", "before every API request is handled"},
    {"connect_latency_ms", &config::connect_latency_ms, "",
     "before a new connection is read from (a round trip, or two with TLS)"},
    {"error_shape", &config::error_shape, "error|error_message|detail|detail_error|html",
     "body of errors (the cap's 429 is fixed)"},
    {"retry_after", &config::retry_after, "", "(?) Retry-After of 429 and 503; empty = none"},
    {"send_date", &config::send_date, "", "(?) answers have a Date"},
    {"date_offset_s", &config::date_offset_s, "", "the Date of answers is so far ahead"},
    {"validation_status", &config::validation_status, "", "(?) answer to a malformed request"},
    {"accept_mode", &config::accept_mode, "normal|refuse|blackhole",
     "new API connections: served, reset, never answered"},
    {"keep_alive_requests", &config::keep_alive_requests, "",
     "requests a connection, then it is closed; 0 = any"},
    {"keep_alive_idle_ms", &config::keep_alive_idle_ms, "",
     "idle connections are closed silently; 0 = never"},
    {"more_keys", &config::more_keys, "",
     "more valid API keys of the same account, comma-separated"},
    {"other_accounts", &config::other_accounts, "",
     "more valid API keys, comma-separated, each an account of its own"},
    {"record_requests", &config::record_requests, "",
     "how many requests and commands are remembered"},
    {"record_body_bytes", &config::record_body_bytes, "", "how much of each request body"},
};

const setting& find(std::string_view name) {
    for (const auto& one : settings)
        if (one.name == name) return one;
    throw std::invalid_argument("no such setting: " + std::string(name));
}

bool among(std::string_view value, std::string_view choices) {
    if (choices.empty()) return true;
    const std::string list = "|" + std::string(choices) + "|";
    return value.find('|') == value.npos && list.find("|" + std::string(value) + "|") != list.npos;
}

// Choices that look like numbers may be given as numbers.
std::string as_text(const json::value& value) {
    return value.is_string()  ? std::string(value.get_string())
           : value.is_int64() ? std::to_string(value.get_int64())
                              : "";
}

void assign(config& into, const setting& one, const json::value& value) {
    const auto wrong = [&](std::string_view what) {
        throw std::invalid_argument("setting " + std::string(one.name) + " must be " +
                                    std::string(what));
    };
    if (const auto* flag = std::get_if<bool config::*>(&one.where)) {
        if (!value.is_bool()) wrong("true or false");
        into.** flag = value.get_bool();
    } else if (const auto* whole = std::get_if<std::int64_t config::*>(&one.where)) {
        if (!value.is_int64() || value.get_int64() < 0) wrong("a whole number, not negative");
        into.** whole = value.get_int64();
    } else if (const auto* number = std::get_if<double config::*>(&one.where)) {
        if (!value.is_number() || value.to_number<double>() < 0) wrong("a number, not negative");
        into.** number = value.to_number<double>();
    } else if (const auto* text = std::get_if<std::string config::*>(&one.where)) {
        if (!(value.is_string() || (value.is_int64() && !one.choices.empty())) ||
            !among(as_text(value), one.choices))
            wrong(one.choices.empty() ? "a text" : "one of " + std::string(one.choices));
        into.** text = as_text(value);
    }
}

void check(const config& all) {
    if (all.chunk_bytes < 1 || all.chunk_bytes > 1048576)
        throw std::invalid_argument("setting chunk_bytes must be 1 to 1048576");
    if (all.time_scale <= 0) throw std::invalid_argument("setting time_scale must be above 0");
    if (all.page_size < 1) throw std::invalid_argument("setting page_size must be above 0");
}

} // namespace

void merge(config& into, const json::object& values) {
    config changed = into;
    for (const auto& [name, value] : values)
        assign(changed, find(std::string_view(name)), value);
    check(changed);
    into = std::move(changed);
}

void merge_text(config& into, std::string_view name, std::string_view value) {
    const auto& one = find(name);
    json::value parsed(value);
    if (!std::holds_alternative<std::string config::*>(one.where)) {
        boost::system::error_code ec;
        parsed = json::parse(value, ec);
    }
    json::object single;
    single[name] = parsed;
    merge(into, single);
}

json::object to_json(const config& from) {
    json::object out;
    for (const auto& one : settings)
        std::visit([&](auto where) { out[one.name] = json::value(from.*where); }, one.where);
    return out;
}

std::string describe_config() {
    std::ostringstream out;
    const config defaults;
    for (const auto& one : settings) {
        out << "  " << one.name << " = ";
        std::visit([&](auto where) { out << json::serialize(json::value(defaults.*where)); },
                   one.where);
        if (!one.choices.empty()) out << " (" << one.choices << ")";
        out << "\n      " << one.meaning << "\n";
    }
    return out.str();
}

} // namespace emulator
