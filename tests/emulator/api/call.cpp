// Paths, bodies and error shapes; see call.hpp.
#include "api/call.hpp"

#include "text.hpp"

#include <boost/json.hpp>

namespace json = boost::json;

namespace emulator::api {

namespace {

constexpr std::size_t most_json = 16 * 1024 * 1024;

std::vector<std::string_view> split(std::string_view text, char at) {
    std::vector<std::string_view> parts;
    for (;;) {
        const auto end = text.find(at);
        parts.push_back(text.substr(0, end));
        if (end == text.npos) return parts;
        text.remove_prefix(end + 1);
    }
}

std::map<std::string, std::string> read_query(std::string_view text) {
    std::map<std::string, std::string> query;
    for (const auto part : split(text, '&')) {
        const auto equals = part.find('=');
        std::string name, value;
        if (!part.empty() && percent_decode(part.substr(0, equals), name, true) &&
            (equals == part.npos || percent_decode(part.substr(equals + 1), value, true)))
            query[name] = value;
    }
    return query;
}

} // namespace

void world::read_accounts() {
    for (const auto key : split(settings.more_keys, ','))
        if (!key.empty()) accounts.emplace(std::string(key), 0);
    for (const auto key : split(settings.other_accounts, ','))
        if (!key.empty()) accounts.emplace(std::string(key), static_cast<int>(accounts.size()));
}

target resolve(std::string_view method, std::string_view raw) {
    target found;
    found.pattern = "?";
    const auto question = raw.find('?');
    if (question != raw.npos) found.query = read_query(raw.substr(question + 1));
    const auto path = raw.substr(0, question);
    if (path.empty() || path[0] != '/') return found;
    for (const auto part : split(path.substr(1), '/')) {
        std::string segment;
        if (!percent_decode(part, segment, false)) return found;
        found.segments.push_back(std::move(segment));
    }
    const auto& at = found.segments;
    if (at[0] == "_control") {
        found.to = route::control;
        return found;
    }
    if (at.size() < 2 || at[0] != "v1" || at[1] != "sandboxes") return found;
    struct row {
        std::size_t depth;
        std::string_view method, third, fourth;
        route to;
        std::string_view pattern;
    };
    static constexpr row rows[] = {
        {2, "POST", "", "", route::create, "/v1/sandboxes"},
        {2, "GET", "", "", route::list, "/v1/sandboxes"},
        {3, "GET", "", "", route::get, "/v1/sandboxes/{id}"},
        {3, "DELETE", "", "", route::remove, "/v1/sandboxes/{id}"},
        {4, "POST", "stop", "", route::stop, "/v1/sandboxes/{id}/stop"},
        {4, "POST", "start", "", route::start, "/v1/sandboxes/{id}/start"},
        {4, "POST", "exec", "", route::exec, "/v1/sandboxes/{id}/exec"},
        {5, "PUT", "fs", "content", route::put_file, "/v1/sandboxes/{id}/fs/content"},
        {5, "GET", "fs", "content", route::get_file, "/v1/sandboxes/{id}/fs/content"},
    };
    if (at.size() == 3 && at[2] == "catalog") {
        found.pattern = "/v1/sandboxes/catalog";
        found.to = method == "GET" ? route::catalog : route::wrong_method;
        return found;
    }
    for (const auto& one : rows) {
        if (at.size() != one.depth || (one.depth > 3 && at[3] != one.third) ||
            (one.depth > 4 && at[4] != one.fourth))
            continue;
        found.pattern = one.pattern;
        if (one.depth > 2) found.sandbox_id = at[2];
        if (method == one.method) {
            found.to = one.to;
            return found;
        }
        found.to = route::wrong_method;
    }
    if (found.to == route::unknown) found.sandbox_id.clear();
    return found;
}

void call::refuse(const std::string& why) const {
    throw cloud::api_error{static_cast<int>(all.settings.validation_status), why};
}

task<std::string> call::read_body(std::size_t limit) {
    std::string body;
    std::vector<char> part(16 * 1024);
    if (connection.content_length().value_or(0) > limit)
        throw cloud::api_error{413, "Request body too large"};
    for (;;) {
        const std::size_t got = co_await connection.read_body(part.data(), part.size());
        if (got == 0) break;
        body.append(part.data(), got);
        if (body.size() > limit) throw cloud::api_error{413, "Request body too large"};
    }
    record.body_bytes = body.size();
    record.body_prefix = body.substr(0, static_cast<std::size_t>(all.settings.record_body_bytes));
    co_return body;
}

task<json::object> call::read_json() {
    const std::string body = co_await read_body(most_json);
    boost::system::error_code ec;
    auto parsed = json::parse(body, ec);
    if (ec || !parsed.is_object()) refuse("The body is not a JSON object");
    co_return std::move(parsed.get_object());
}

task<void> call::reply_json(const json::value& body, int status) {
    const std::string text = json::serialize(body);
    co_await answer.reply(status, "application/json", text);
}

error_body shape_error(const config& settings, int status, const std::string& message) {
    json::object out;
    if (settings.error_shape == "error")
        out["error"] = message;
    else if (settings.error_shape == "error_message")
        out["error"] = json::object{{"message", message}};
    else if (settings.error_shape == "detail")
        out["detail"] = message;
    else if (settings.error_shape == "detail_error")
        out["detail"] = json::object{{"error", message}};
    else {
        const std::string title = std::to_string(status) + " " + std::string(http::reason(status));
        return {"text/html", "<html><head><title>" + title + "</title></head><body><h1>" + title +
                                 "</h1></body></html>\n"};
    }
    return {"application/json", json::serialize(out)};
}

} // namespace emulator::api
