// See recorder.hpp.
#include "recorder.hpp"

#include "text.hpp"

#include <boost/json.hpp>

namespace json = boost::json;

namespace emulator {

namespace {

json::object counters(const std::map<std::string, std::uint64_t>& from) {
    json::object out;
    for (const auto& [name, count] : from)
        out[name] = count;
    return out;
}

// Record texts may hold any bytes; JSON may not.
json::string clean(const std::string& bytes) {
    std::string quoted = "\"";
    append_json_text(quoted, bytes, replacement::subpart);
    quoted += '"';
    return json::parse(quoted).get_string();
}

} // namespace

double unix_now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::shared_ptr<request_record> recorder::begin_request(std::uint64_t connection) {
    auto made = std::make_shared<request_record>();
    made->number = next_request_++;
    made->connection = connection;
    made->at = unix_now();
    requests_.push_back(made);
    while (requests_.size() > static_cast<std::size_t>(config_.record_requests))
        requests_.pop_front();
    return made;
}

void recorder::count(const request_record& request) {
    const std::string key = request.method + " " + request.route;
    ++total_;
    ++by_route_[key];
    if (!request.sandbox_id.empty()) ++by_sandbox_[request.sandbox_id][key];
}

void recorder::end_request(request_record& request, const std::string& outcome) {
    request.outcome = outcome;
    request.ended = unix_now();
    ++by_status_[std::to_string(request.status)];
}

std::shared_ptr<command_record> recorder::begin_command() {
    auto made = std::make_shared<command_record>();
    made->at = unix_now();
    ++commands_started_;
    commands_.push_back(made);
    while (commands_.size() > static_cast<std::size_t>(config_.record_requests))
        commands_.pop_front();
    return made;
}

void recorder::reset() {
    total_ = commands_started_ = connections_accepted = sandboxes_created = boots = 0;
    by_route_.clear();
    by_status_.clear();
    by_sandbox_.clear();
    requests_.clear();
    commands_.clear();
}

json::array recorder::requests(std::size_t last) const {
    json::array out;
    for (std::size_t i = requests_.size() > last ? requests_.size() - last : 0;
         i < requests_.size(); ++i) {
        const auto& one = *requests_[i];
        json::object item;
        item["n"] = one.number;
        item["connection"] = one.connection;
        item["method"] = clean(one.method);
        item["target"] = clean(one.target);
        item["route"] = one.route;
        item["sandbox_id"] = clean(one.sandbox_id);
        item["authorized"] = one.authorized;
        json::object headers;
        for (const auto& [name, value] : one.headers)
            headers[name] = clean(value);
        item["headers"] = std::move(headers);
        item["body_prefix"] = clean(one.body_prefix);
        item["body_bytes"] = one.body_bytes;
        item["status"] = one.status;
        item["outcome"] = one.outcome;
        item["at"] = one.at;
        item["ended"] = one.ended;
        out.push_back(std::move(item));
    }
    return out;
}

json::array recorder::commands(const std::string& sandbox_id) const {
    json::array out;
    for (const auto& entry : commands_) {
        const auto& one = *entry;
        if (!sandbox_id.empty() && one.sandbox_id != sandbox_id) continue;
        json::object item;
        item["n"] = one.number;
        item["sandbox_id"] = one.sandbox_id;
        json::array argv;
        for (const auto& word : one.argv)
            argv.push_back(clean(word));
        item["argv"] = std::move(argv);
        item["timeout_s"] = one.timeout_s;
        item["pid"] = one.pid;
        item["returncode"] = one.returncode ? json::value(*one.returncode) : json::value(nullptr);
        item["ended"] = one.ended;
        item["stdout_bytes"] = one.stdout_bytes;
        item["stderr_bytes"] = one.stderr_bytes;
        item["at"] = one.at;
        item["ended_at"] = one.ended_at;
        out.push_back(std::move(item));
    }
    return out;
}

void recorder::stats(json::object& out) const {
    out["total"] = total_;
    out["requests"] = counters(by_route_);
    out["statuses"] = counters(by_status_);
    json::object sandboxes;
    for (const auto& [id, routes] : by_sandbox_)
        sandboxes[clean(id)] = counters(routes);
    out["by_sandbox"] = std::move(sandboxes);
    out["commands_started"] = commands_started_;
    out["connections_accepted"] = connections_accepted;
    out["connections_open"] = connections_open;
    out["sandboxes_created"] = sandboxes_created;
    out["boots"] = boots;
}

} // namespace emulator
