// The routes under /_control/, by which tests drive and question the emulator. `deep-sands-emulator
// --help` explains them.
#include "api/call.hpp"

#include <boost/json.hpp>

#include <charconv>
#include <stdexcept>

namespace json = boost::json;
using steady = std::chrono::steady_clock;

namespace emulator::api {

namespace {

json::value optional_number(const std::optional<std::uint32_t>& number) {
    return number ? json::value(*number) : json::value(nullptr);
}

task<json::array> list_processes(cloud::sandbox_ptr which) {
    json::array out;
    if (which->inside) {
        const auto inside = which->inside;
        const auto found = co_await inside->processes();
        for (const auto& one : found) {
            json::object item;
            item["pid"] = one.pid;
            item["ppid"] = one.parent;
            item["pgid"] = one.group;
            item["command"] = optional_number(one.command);
            std::string quoted = one.line;
            for (char& c : quoted)
                c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
            item["cmdline"] = quoted;
            out.push_back(std::move(item));
        }
    }
    co_return out;
}

task<json::object> show_sandbox(call& c, cloud::sandbox_ptr which) {
    auto out = c.all.platform->describe(*which);
    const std::chrono::duration<double> idle = steady::now() - which->last_call;
    out["account"] = which->account;
    out["active"] = which->active();
    out["boots"] = which->boots;
    out["calls_in_flight"] = which->calls_in_flight;
    out["timeout_seconds"] = which->timeout_s;
    out["idle_s"] =
        which->now == cloud::state::running ? json::value(idle.count()) : json::value(nullptr);
    out["workspace"] = which->workspace().string();
    out["processes"] = co_await list_processes(which);
    co_return out;
}

task<void> show_stats(call& c) {
    json::object out;
    c.all.records.stats(out);
    std::int64_t processes = 0, cells = 0;
    const auto all = c.all.platform->all();
    for (const auto& one : all) {
        const auto inside = one->inside;
        if (!inside) continue;
        ++cells;
        const auto found = co_await inside->processes();
        processes += static_cast<std::int64_t>(found.size());
    }
    out["live_processes"] = processes;
    out["live_cells"] = cells;
    co_await c.reply_json(out);
}

cloud::sandbox_ptr any_sandbox(const call& c, const std::string& id) {
    for (const auto& one : c.all.platform->all())
        if (one->id == id) return one;
    throw cloud::api_error{404, "no such sandbox"};
}

task<void> act_on_sandbox(call& c) {
    const auto which = any_sandbox(c, c.where.segments[2]);
    const auto& verb = c.where.segments[3];
    if (which->now == cloud::state::deleted) throw cloud::api_error{409, "the sandbox is deleted"};
    if (verb == "stop")
        co_await c.all.platform->force(which, cloud::state::stopped);
    else if (verb == "delete")
        co_await c.all.platform->force(which, cloud::state::deleted);
    else if (verb == "fail")
        co_await c.all.platform->force(which, cloud::state::failed);
    else
        throw cloud::api_error{404, "no such control verb: " + verb};
    const auto shown = co_await show_sandbox(c, which);
    co_await c.reply_json(shown);
}

task<void> drop_connections(call& c) {
    const auto order = co_await c.read_json();
    bool reset = false, idle_only = false;
    for (const auto& [name, value] : order) {
        if (name == "how" && (value == "fin" || value == "rst"))
            reset = value == "rst";
        else if (name == "idle_only" && value.is_bool())
            idle_only = value.get_bool();
        else
            throw std::invalid_argument("drop-connections: unknown or ill-typed member " +
                                        std::string(name));
    }
    std::int64_t dropped = 0;
    for (auto* one : c.all.connections)
        if (one != &c.connection && !(idle_only && one->busy)) {
            one->abort(reset);
            ++dropped;
        }
    json::object out;
    out["dropped"] = dropped;
    co_await c.reply_json(out);
}

std::size_t last_of(const call& c) {
    std::size_t last = 1000000;
    if (const auto found = c.where.query.find("last"); found != c.where.query.end())
        std::from_chars(found->second.data(), found->second.data() + found->second.size(), last);
    return last;
}

task<void> route_control(call& c) {
    const auto& at = c.where.segments;
    const std::string what = c.record.method + " " + (at.size() > 1 ? at[1] : "");
    auto& all = c.all;
    json::object out;
    if (what == "GET stats") {
        co_await show_stats(c);
    } else if (what == "POST reset-stats") {
        all.records.reset();
        co_await c.reply_json(out);
    } else if (what == "GET config") {
        const json::value settings = to_json(all.settings);
        co_await c.reply_json(settings);
    } else if (what == "POST config") {
        const auto values = co_await c.read_json();
        merge(all.settings, values);
        all.read_accounts();
        all.platform->recompute_deadlines();
        const json::value settings = to_json(all.settings);
        co_await c.reply_json(settings);
    } else if (what == "POST fault") {
        const auto description = co_await c.read_json();
        out["fault"] = all.faults.add(description);
        co_await c.reply_json(out);
    } else if (what == "GET faults") {
        const json::value list = all.faults.to_json();
        co_await c.reply_json(list);
    } else if (what == "DELETE faults") {
        all.faults.clear();
        co_await c.reply_json(out);
    } else if (what == "GET requests") {
        const json::value list = all.records.requests(last_of(c));
        co_await c.reply_json(list);
    } else if (what == "GET commands") {
        const auto found = c.where.query.find("sandbox_id");
        const std::string id = found == c.where.query.end() ? std::string() : found->second;
        const json::value list = all.records.commands(id);
        co_await c.reply_json(list);
    } else if (what == "POST drop-connections") {
        co_await drop_connections(c);
    } else if (what == "GET sandboxes") {
        json::array list;
        const auto found = all.platform->all();
        for (const auto& one : found) {
            auto shown = co_await show_sandbox(c, one);
            list.push_back(std::move(shown));
        }
        co_await c.reply_json(list);
    } else if (what == "POST sandboxes" && at.size() == 4) {
        co_await act_on_sandbox(c);
    } else
        throw cloud::api_error{404, "no such control route: " + what};
}

} // namespace

task<void> serve_control(call& c) {
    std::string wrong;
    try {
        co_await route_control(c);
    } catch (const std::invalid_argument& error) {
        wrong = error.what();
    }
    if (!wrong.empty()) throw cloud::api_error{400, wrong};
}

} // namespace emulator::api
