// Reading and matching of faults; see faults.hpp.
#include "faults.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <stdexcept>

namespace json = boost::json;

namespace emulator {

namespace {

[[noreturn]] void refuse(std::string_view name) {
    throw std::invalid_argument("fault: unknown or ill-typed member " + std::string(name));
}

std::int64_t whole(std::string_view name, const json::value& value) {
    if (!value.is_int64() || value.get_int64() < 0) refuse(name);
    return value.get_int64();
}

bool flag(std::string_view name, const json::value& value) {
    if (!value.is_bool()) refuse(name);
    return value.get_bool();
}

std::string text(std::string_view name, const json::value& value) {
    if (!value.is_string()) refuse(name);
    return std::string(value.get_string());
}

// A body may be given as text or as JSON to be sent.
std::string body_of(const json::value& value) {
    return value.is_string() ? std::string(value.get_string()) : json::serialize(value);
}

void read_headers(fault_action& action, const json::value& value) {
    if (!value.is_object()) refuse("headers");
    for (const auto& [header, content] : value.get_object())
        action.headers.emplace_back(std::string(header), text("headers", content));
}

void read_act_then_status(fault_action& action, const json::value& value) {
    if (value.is_int64()) {
        action.act_then_status = static_cast<int>(value.get_int64());
        return;
    }
    if (!value.is_object()) refuse("act_then_status");
    for (const auto& [name, content] : value.get_object()) {
        if (name == "status")
            action.act_then_status = static_cast<int>(whole(name, content));
        else if (name == "body")
            action.body = body_of(content);
        else if (name == "headers")
            read_headers(action, content);
        else
            refuse(name);
    }
    if (!action.act_then_status) refuse("act_then_status");
}

fault_action read_action(const json::object& object) {
    fault_action action;
    for (const auto& [key, value] : object) {
        const std::string_view name = key;
        if (name == "latency_ms")
            action.latency_ms = whole(name, value);
        else if (name == "latency_after_ms")
            action.latency_after_ms = whole(name, value);
        else if (name == "drop_before")
            action.drop_before = flag(name, value);
        else if (name == "stall_before")
            action.stall_before = flag(name, value);
        else if (name == "status")
            action.status = static_cast<int>(whole(name, value));
        else if (name == "body")
            action.body = body_of(value);
        else if (name == "headers")
            read_headers(action, value);
        else if (name == "act_then_drop") {
            action.act_then_drop =
                value.is_bool() ? (value.get_bool() ? "started" : "") : text(name, value);
            if (action.act_then_drop != "" && action.act_then_drop != "started" &&
                action.act_then_drop != "done")
                refuse(name);
        } else if (name == "act_then_status")
            read_act_then_status(action, value);
        else if (name == "cut_after_bytes")
            action.cut_after_bytes = whole(name, value);
        else if (name == "cut_after_lines")
            action.cut_after_lines = whole(name, value);
        else if (name == "how") {
            const auto how = text(name, value);
            if (how != "fin" && how != "rst") refuse(name);
            action.reset = how == "rst";
        } else if (name == "stall_after_bytes")
            action.stall_after_bytes = whole(name, value);
        else if (name == "stall_ms")
            action.stall_ms = whole(name, value);
        else if (name == "omit_terminal")
            action.omit_terminal = flag(name, value);
        else if (name == "omit_end")
            action.omit_end = flag(name, value);
        else if (name == "terminal")
            action.terminal = body_of(value);
        else if (name == "inject")
            action.inject = body_of(value);
        else if (name == "piece_bytes")
            action.piece_bytes = whole(name, value);
        else if (name == "piece_delay_ms")
            action.piece_delay_ms = whole(name, value);
        else
            refuse(name);
    }
    return action;
}

} // namespace

std::uint64_t fault_list::add(const json::object& description) {
    fault made;
    for (const auto& [key, value] : description) {
        const std::string_view name = key;
        if (name == "match" && value.is_object()) {
            for (const auto& [what, content] : value.get_object()) {
                if (what == "method")
                    made.method = text(what, content);
                else if (what == "route")
                    made.route = text(what, content);
                else if (what == "sandbox_id")
                    made.sandbox_id = text(what, content);
                else if (what == "body")
                    made.body = text(what, content);
                else
                    refuse(what);
            }
        } else if (name == "times")
            made.times = whole(name, value);
        else if (name == "skip")
            made.skip = whole(name, value);
        else if (name == "action" && value.is_object())
            made.action = read_action(value.get_object());
        else
            refuse(name);
    }
    made.number = next_++;
    list_.push_back(made);
    return made.number;
}

bool fault_list::wants_body() const {
    return std::any_of(list_.begin(), list_.end(),
                       [](const fault& one) { return !one.spent && !one.body.empty(); });
}

std::optional<fault_action> fault_list::take(const std::string& method, const std::string& route,
                                             const std::string& sandbox_id, std::string_view body) {
    for (auto& one : list_) {
        if (one.spent || (!one.method.empty() && one.method != method) ||
            (!one.route.empty() && one.route != route) ||
            (!one.sandbox_id.empty() && one.sandbox_id != sandbox_id) ||
            body.find(one.body) == std::string_view::npos)
            continue;
        if (one.skip > 0) {
            --one.skip;
            continue;
        }
        ++one.used;
        one.spent = one.times != 0 && one.used >= one.times;
        return one.action;
    }
    return std::nullopt;
}

json::array fault_list::to_json() const {
    json::array out;
    for (const auto& one : list_) {
        json::object item;
        item["fault"] = one.number;
        item["method"] = one.method;
        item["route"] = one.route;
        item["sandbox_id"] = one.sandbox_id;
        item["body"] = one.body;
        item["skip"] = one.skip;
        item["times"] = one.times;
        item["used"] = one.used;
        out.push_back(std::move(item));
    }
    return out;
}

} // namespace emulator
