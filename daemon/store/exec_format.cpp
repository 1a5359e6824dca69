#include "store/exec_format.hpp"

#include "base/utf8.hpp"

#include <boost/json.hpp>

#include <array>
#include <exception>
#include <stdexcept>
#include <utility>

namespace sandboxd::store {
namespace {

using namespace core;

namespace json = boost::json;

template <class E, std::size_t N>
using names = std::array<std::pair<E, std::string_view>, N>;

constexpr names<exec_phase, 4> phases{{{exec_phase::accepted, "accepted"},
                                       {exec_phase::sent, "sent"},
                                       {exec_phase::heard, "heard"},
                                       {exec_phase::ended, "ended"}}};
constexpr names<exit_reason, 5> reasons{{{exit_reason::exited, "exited"},
                                         {exit_reason::timed_out, "timed_out"},
                                         {exit_reason::cancelled, "cancelled"},
                                         {exit_reason::lost, "lost"},
                                         {exit_reason::failed, "failed"}}};
constexpr names<started, 3> starts{
    {{started::yes, "yes"}, {started::no, "no"}, {started::unknown, "unknown"}}};

template <class E, std::size_t N>
std::string_view name_of(const names<E, N>& table, E value) {
    for (const auto& [each, name] : table) {
        if (each == value) {
            return name;
        }
    }
    return {};
}

template <class E, std::size_t N>
E value_of(const names<E, N>& table, const json::value& text) {
    for (const auto& [each, name] : table) {
        if (name == std::string_view(text.as_string())) {
            return each;
        }
    }
    throw std::invalid_argument("an unknown word");
}

json::object exit_to_json(const exec_exit& exit) {
    json::object object{{"reason", name_of(reasons, exit.reason)},
                        {"code", nullptr},
                        {"started", name_of(starts, exit.ran)},
                        {"message", repair_utf8(exit.message)},
                        {"unconfirmed", exit.kill_unconfirmed}};
    if (exit.returncode) {
        object["code"] = *exit.returncode;
    }
    if (exit.more_output) {
        object["more_output"] = true;
    }
    if (exit.background) {
        object["background"] = true;
    }
    if (exit.error) {
        object["error"] = info(exit.error->name()).text;
    }
    return object;
}

exec_exit exit_from(const json::object& object) {
    exec_exit exit;
    exit.reason = value_of(reasons, object.at("reason"));
    if (!object.at("code").is_null()) {
        exit.returncode = object.at("code").to_number<int>();
    }
    exit.ran = value_of(starts, object.at("started"));
    exit.message = json::value_to<std::string>(object.at("message"));
    exit.kill_unconfirmed = object.at("unconfirmed").as_bool();
    exit.more_output = object.contains("more_output");
    exit.background = object.contains("background");
    if (const json::value* error = object.if_contains("error")) {
        for (const error_info& each : error_table()) {
            if (each.text == std::string_view(error->as_string())) {
                exit.error.emplace(each.name, exit.message);
            }
        }
    }
    return exit;
}

exec_record record_from(const json::object& object) {
    const auto text = [&](const char* name) {
        return json::value_to<std::string>(object.at(name));
    };
    exec_record record;
    record.exec_id = text("id");
    record.digest = text("digest");
    record.key = {text("profile"), text("task")};
    if (const json::value* client = object.if_contains("client")) {
        const json::object& process = client->as_object();
        record.client = {process.at("pid").to_number<int>(),
                         process.at("start").to_number<std::uint64_t>(),
                         json::value_to<std::string>(process.at("boot"))};
    }
    if (const json::value* timeout = object.if_contains("timeout_ms")) {
        record.timeout = milliseconds(timeout->to_number<std::int64_t>());
    }
    record.phase = value_of(phases, object.at("phase"));
    record.at = object.at("at").to_number<std::int64_t>();
    if (const json::value* asked_in = object.if_contains("asked_in")) {
        record.asked_in = asked_in->to_number<std::uint64_t>();
    }
    record.created = object.contains("created");
    record.sandbox_id = text("sandbox");
    record.generation = object.at("generation").to_number<std::uint64_t>();
    record.attached = object.at("attached").as_bool();
    record.safe = object.at("safe").to_number<std::uint64_t>();
    if (record.phase == exec_phase::ended) {
        record.exit = exit_from(object.at("exit").as_object());
        record.output_end = object.at("output_end").to_number<std::uint64_t>();
        record.elapsed = milliseconds(object.at("elapsed_ms").to_number<std::int64_t>());
        record.forgotten = object.at("forgotten").as_bool();
    }
    return record;
}

} // namespace

std::string format_exec_record(const exec_record& record) {
    json::object object{{"id", record.exec_id},
                        {"digest", record.digest},
                        {"profile", record.key.profile},
                        {"task", record.key.task},
                        {"phase", name_of(phases, record.phase)},
                        {"at", record.at},
                        {"sandbox", record.sandbox_id},
                        {"generation", record.generation},
                        {"attached", record.attached},
                        {"safe", record.safe}};
    if (record.asked_in != 0) {
        object["asked_in"] = record.asked_in;
    }
    if (record.created) {
        object["created"] = true;
    }
    if (record.client.pid != 0) {
        object["client"] = {{"pid", record.client.pid},
                            {"start", record.client.start_time},
                            {"boot", record.client.boot}};
    }
    if (record.timeout) {
        object["timeout_ms"] = record.timeout->count();
    }
    if (record.phase == exec_phase::ended) {
        object["exit"] = exit_to_json(record.exit);
        object["output_end"] = record.output_end;
        object["elapsed_ms"] = record.elapsed.count();
        object["forgotten"] = record.forgotten;
    }
    return json::serialize(object);
}

std::optional<exec_record> parse_exec_record(std::string_view line) {
    try {
        return record_from(json::parse(line).as_object());
    } catch (const std::exception&) {
        return std::nullopt;
    }
}

} // namespace sandboxd::store
