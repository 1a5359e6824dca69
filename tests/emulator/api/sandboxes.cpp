// The routes that make, show, start, stop and end sandboxes.
#include "api/call.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <charconv>

namespace json = boost::json;

namespace emulator::api {

namespace {

std::string text_member(const call& c, const json::object& body, std::string_view name) {
    const auto* value = body.if_contains(name);
    if (!value || value->is_null()) return "";
    if (!value->is_string()) c.refuse(std::string(name) + " must be a string");
    return std::string(value->get_string());
}

cloud::platform::wish read_wish(const call& c, const json::object& body) {
    cloud::platform::wish what;
    what.plan = text_member(c, body, "plan");
    what.image = text_member(c, body, "image");
    if (const auto* tags = body.if_contains("tags"); tags && !tags->is_null()) {
        if (!tags->is_object()) c.refuse("tags must be an object");
        for (const auto& [name, value] : tags->get_object())
            if (!value.is_string()) c.refuse("tags must map strings to strings");
        what.tags = tags->get_object();
    }
    if (const auto* timeout = body.if_contains("timeout_seconds"); timeout && !timeout->is_null()) {
        if (!timeout->is_number() || timeout->to_number<double>() < 0)
            c.refuse("timeout_seconds must be a number, not negative");
        what.timeout_s = timeout->to_number<double>();
    }
    return what;
}

std::size_t query_number(const call& c, const std::string& name, std::size_t otherwise) {
    const auto found = c.where.query.find(name);
    if (found == c.where.query.end()) return otherwise;
    std::size_t value = 0;
    const auto& text = found->second;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || end != text.data() + text.size())
        c.refuse(name + " must be a whole number");
    return value;
}

task<void> serve_list(call& c) {
    const auto& settings = c.all.settings;
    const auto found = c.all.platform->list(c.account);
    std::size_t first = 0, count = found.size();
    http::header_list headers;
    if (settings.pagination != "none") {
        const auto page = static_cast<std::size_t>(settings.page_size);
        first = std::min(found.size(),
                         query_number(c, settings.pagination == "link" ? "cursor" : "offset", 0));
        count = std::min({found.size() - first, query_number(c, "limit", page), page});
        if (settings.pagination == "link" && first + count < found.size())
            headers.emplace_back("Link", "</v1/sandboxes?cursor=" + std::to_string(first + count) +
                                             ">; rel=\"next\"");
    }
    json::array out;
    for (std::size_t i = first; i < first + count; ++i)
        out.push_back(c.all.platform->describe(*found[i]));
    const std::string text = json::serialize(out);
    co_await c.answer.reply(200, "application/json", text, headers);
}

task<void> serve_catalog(call& c) {
    json::array out;
    for (const auto& plan : cloud::catalog()) {
        json::object item;
        item["id"] = plan.id;
        item["vcpu"] = plan.vcpu;
        item["ram_gb"] = plan.ram_gb;
        item["disk_gb"] = plan.disk_gb;
        item["price_per_hour"] = plan.price_per_hour;
        out.push_back(std::move(item));
    }
    co_await c.reply_json(out);
}

void refuse_deleted(const call& c, const cloud::sandbox_ptr& which) {
    if (which->now == cloud::state::deleted)
        throw cloud::api_error{std::stoi(c.all.settings.deleted_call_status), "Sandbox is deleted"};
}

} // namespace

task<void> serve_sandboxes(call& c) {
    auto& platform = *c.all.platform;
    if (c.where.to == route::list) {
        co_await serve_list(c);
        co_return;
    }
    if (c.where.to == route::catalog) {
        co_await serve_catalog(c);
        co_return;
    }
    if (c.where.to == route::create) {
        const auto body = co_await c.read_json();
        const auto made = platform.create(c.account, read_wish(c, body));
        c.record.sandbox_id = made->id;
        json::object id;
        id["sandbox_id"] = made->id;
        co_await c.reply_json(id);
        co_return;
    }
    json::object shown;
    const auto which = platform.find(c.account, c.where.sandbox_id);
    switch (c.where.to) {
    case route::get:
        if (c.all.settings.get_counts_as_call) platform.touch(which);
        shown = platform.describe(*which);
        break;
    case route::remove:
        co_await platform.remove(which);
        break;
    case route::stop:
        refuse_deleted(c, which);
        platform.stop(which);
        break;
    default:
        refuse_deleted(c, which);
        platform.start(which);
    }
    co_await c.reply_json(shown);
}

} // namespace emulator::api
