#include "cloud/wire.hpp"

#include <boost/beast/core/string.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace sandboxd::cloud {

namespace {

namespace json = boost::json;

failure bad(std::string message) {
    return failure{failure_kind::bad_answer, 200, std::move(message), std::nullopt};
}

std::optional<json::value> parse_json(std::string_view body) {
    json::error_code ec;
    json::value out = json::parse(json::string_view(body.data(), body.size()), ec);
    if (ec) return std::nullopt;
    return out;
}

std::string string_at(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_string()) return {};
    return std::string(value->get_string().data(), value->get_string().size());
}

// None of the catalog's numbers can be below zero.
std::optional<double> number_at(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_number()) return std::nullopt;
    const double number = value->to_number<double>();
    return number >= 0 ? std::optional(number) : std::nullopt;
}

std::int64_t whole_number(const json::value& value, std::int64_t otherwise) {
    if (value.is_int64()) return value.get_int64();
    if (value.is_double() && value.get_double() > -9e15 && value.get_double() < 9e15) {
        return static_cast<std::int64_t>(value.get_double());
    }
    return otherwise;
}

std::optional<sandbox_info> sandbox_of(const json::value& value) {
    if (!value.is_object()) return std::nullopt;
    const json::object& object = value.get_object();
    sandbox_info out;
    out.id = string_at(object, "sandbox_id");
    if (out.id.empty()) return std::nullopt;
    out.plan = string_at(object, "plan");
    out.state = parse_state(string_at(object, "state"));
    if (const json::value* created = object.if_contains("created_at"))
        out.created_at = whole_number(*created, 0);
    if (const json::value* tags = object.if_contains("tags");
        tags != nullptr && tags->is_object()) {
        for (const auto& tag : tags->get_object()) {
            if (tag.value().is_string()) {
                const auto& text = tag.value().get_string();
                out.tags.emplace(std::string(tag.key().data(), tag.key().size()),
                                 std::string(text.data(), text.size()));
            }
        }
    }
    return out;
}

// What an object around the list says about more pages. Nothing if there are more and no way to
// them is known.
std::optional<next_page> next_of(const json::object& object) {
    using names = std::pair<std::string_view, std::string_view>;
    // The field, and the query parameter its value usually goes into.
    static constexpr std::array<names, 3> fields{
        {{"next", "cursor"}, {"next_cursor", "cursor"}, {"next_page_token", "page_token"}}};
    for (const auto& [field, parameter] : fields) {
        const json::value* value = object.if_contains(field);
        if (value == nullptr || value->is_null()) continue;
        std::string text;
        if (value->is_string()) {
            text = std::string(value->get_string().data(), value->get_string().size());
        } else if (value->is_int64()) {
            text = std::to_string(value->get_int64());
        } else {
            return std::nullopt;
        }
        if (text.empty()) continue;
        const bool is_reference =
            field == "next" && (text.starts_with("http://") || text.starts_with("https://") ||
                                text.front() == '/' || text.front() == '?');
        return next_page{is_reference ? next_page::kind::reference : next_page::kind::cursor, text,
                         std::string(parameter)};
    }
    const json::value* more = object.if_contains("has_more");
    if (more != nullptr && more->is_bool() && more->get_bool()) return std::nullopt;
    return next_page{};
}

} // namespace

std::string create_body(const create_request& request) {
    json::object tags;
    for (const auto& [name, value] : request.tags)
        tags[name] = value;
    return json::serialize(json::object{{"image", ""},
                                        {"plan", request.plan},
                                        {"tags", std::move(tags)},
                                        {"timeout_seconds", request.timeout.count()}});
}

std::string exec_body(const std::vector<std::string>& argv, std::chrono::seconds timeout) {
    json::array command;
    command.reserve(argv.size());
    for (const std::string& argument : argv)
        command.emplace_back(argument);
    return json::serialize(
        json::object{{"command", std::move(command)}, {"timeout_seconds", timeout.count()}});
}

sandbox_state parse_state(std::string_view name) noexcept {
    using named = std::pair<std::string_view, sandbox_state>;
    static constexpr std::array<named, 7> states{{{"creating", sandbox_state::creating},
                                                  {"starting", sandbox_state::starting},
                                                  {"running", sandbox_state::running},
                                                  {"stopping", sandbox_state::stopping},
                                                  {"stopped", sandbox_state::stopped},
                                                  {"failed", sandbox_state::failed},
                                                  {"deleted", sandbox_state::deleted}}};
    for (const auto& [text, state] : states) {
        if (text == name) return state;
    }
    return sandbox_state::unknown;
}

result<sandbox_info> parse_sandbox(std::string_view body) {
    const auto root = parse_json(body);
    auto out = root ? sandbox_of(*root) : std::nullopt;
    if (!out) return bad("the answer is not a sandbox object");
    return std::move(*out);
}

result<std::string> parse_created(std::string_view body) {
    const auto root = parse_json(body);
    std::string id =
        root && root->is_object() ? string_at(root->get_object(), "sandbox_id") : std::string();
    if (id.empty()) return bad("the answer to a create has no sandbox id");
    return id;
}

result<std::vector<plan_info>> parse_catalog(std::string_view body) {
    const auto root = parse_json(body);
    if (!root || !root->is_array()) return bad("the catalog is not a list of plans");
    std::vector<plan_info> out;
    for (const json::value& item : root->get_array()) {
        if (!item.is_object()) continue;
        const json::object& object = item.get_object();
        plan_info plan{string_at(object, "id"), number_at(object, "vcpu"),
                       number_at(object, "ram_gb"), number_at(object, "disk_gb"),
                       number_at(object, "price_per_hour")};
        if (!plan.id.empty()) out.push_back(std::move(plan));
    }
    return out;
}

result<void> parse_nothing(std::string_view body) {
    if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) return {};
    const auto root = parse_json(body);
    if (!root || !(root->is_object() || root->is_null())) return bad("the answer is not the API's");
    return {};
}

result<sandbox_page> parse_sandbox_page(std::string_view body, std::string_view link) {
    const auto root = parse_json(body);
    const json::array* list = nullptr;
    sandbox_page out;
    if (root && root->is_array()) {
        list = &root->get_array();
    } else if (root && root->is_object()) {
        const json::object& object = root->get_object();
        for (const std::string_view name : {"sandboxes", "items", "data"}) {
            const json::value* value = object.if_contains(name);
            if (list == nullptr && value != nullptr && value->is_array())
                list = &value->get_array();
        }
        auto next = next_of(object);
        if (list != nullptr && !next)
            return bad("the listing has more pages, but does not say where");
        if (next) out.next = std::move(*next);
        if (const json::value* total = object.if_contains("total"))
            out.total = whole_number(*total, -1);
    }
    if (list == nullptr) return bad("the listing is not a list of sandboxes");
    for (const json::value& item : *list) {
        auto sandbox = sandbox_of(item);
        if (!sandbox) return bad("the listing holds something that is not a sandbox object");
        out.sandboxes.push_back(std::move(*sandbox));
    }
    if (out.next.what == next_page::kind::none) {
        if (std::string reference = next_link(link); !reference.empty()) {
            out.next = next_page{next_page::kind::reference, std::move(reference), {}};
        }
    }
    return out;
}

std::string next_link(std::string_view link) {
    // link-value = "<" URI ">" *( ";" name [ "=" value ] ), separated by commas; commas inside <>
    // and "" do not count.
    const auto skip = [&link](std::string_view characters) {
        link.remove_prefix(std::min(link.find_first_not_of(characters), link.size()));
    };
    while (true) {
        skip(" \t,");
        if (link.empty() || link.front() != '<') return {};
        const auto close = link.find('>');
        if (close == std::string_view::npos) return {};
        const std::string_view target = link.substr(1, close - 1);
        link.remove_prefix(close + 1);
        bool is_next = false;
        while (true) {
            skip(" \t");
            if (link.empty() || link.front() != ';') break;
            link.remove_prefix(1);
            skip(" \t");
            const std::string_view name = link.substr(0, link.find_first_of("=;, \t"));
            link.remove_prefix(name.size());
            skip(" \t");
            std::string_view value;
            if (!link.empty() && link.front() == '=') {
                link.remove_prefix(1);
                skip(" \t");
                if (!link.empty() && link.front() == '"') {
                    link.remove_prefix(1);
                    value = link.substr(0, link.find('"'));
                    link.remove_prefix(std::min(value.size() + 1, link.size()));
                } else {
                    value = link.substr(0, link.find_first_of(";, \t"));
                    link.remove_prefix(value.size());
                }
            }
            if (boost::beast::iequals({name.data(), name.size()}, "rel") &&
                boost::beast::iequals({value.data(), value.size()}, "next")) {
                is_next = true;
            }
        }
        if (is_next) return std::string(target);
        if (!link.empty() && link.front() != ',') return {};
    }
}

} // namespace sandboxd::cloud
