#include "rpc/encode.hpp"

#include "base/base64.hpp"
#include "base/utf8.hpp"
#include "rpc/message.hpp"

namespace sandboxd::rpc {
namespace {

double seconds(std::chrono::milliseconds duration) {
    return static_cast<double>(duration.count()) / 1000;
}

json::value text_or_null(const std::string& text) {
    return text.empty() ? json::value(nullptr) : json::value(text);
}

} // namespace

json::object encode(const core::sandbox_key& key) {
    return {{"profile", key.profile}, {"task", key.task}};
}

json::object encode(const sandbox::view& shown) {
    const core::sandbox_record& record = shown.record;
    json::value idle = nullptr;
    if (!shown.running.empty()) {
        idle = 0;
    } else if (shown.idle) {
        idle = seconds(*shown.idle);
    }
    json::object told{{"key", encode(record.key)},
                      {"id", text_or_null(record.sandbox_id)},
                      {"state", core::to_string(record.state)},
                      {"plan", record.runs_on.empty() ? record.plan : record.runs_on},
                      {"persistent", record.persistent},
                      {"generation", record.generation},
                      {"idle_s", std::move(idle)},
                      {"running", json::array(shown.running.begin(), shown.running.end())},
                      {"awake_because", text_or_null(shown.awake_because)},
                      {"created_at", record.created_at == 0 ? json::value(nullptr)
                                                            : json::value(record.created_at)},
                      {"holders", shown.holders},
                      {"rate_usd_per_hour", shown.usd_per_hour ? json::value(*shown.usd_per_hour)
                                                               : json::value(nullptr)},
                      {"cost_usd", record.usage.usd}};
    if (record.idle_stop.count() != 0) {
        told["idle_stop_s"] = record.idle_stop.count();
    }
    return told;
}

json::object encode(const sandbox::money& spent) {
    return {{"rate_usd_per_hour", spent.usd_per_hour},
            {"prices_known", spent.prices_known},
            {"today_usd", spent.total.today_usd},
            {"total_usd", spent.total.total_usd},
            {"saved_today_usd", spent.total.saved_today_usd},
            {"saved_usd", spent.total.saved_usd},
            {"budget_per_day_usd",
             spent.budget_per_day > 0 ? json::value(spent.budget_per_day) : json::value(nullptr)}};
}

json::object encode(const sandbox::orphan& lost) {
    const cloud::sandbox_info& info = lost.info;
    return {
        {"id", info.id},
        {"state", core::to_string(core::life_state_of(info.state))},
        {"plan", info.plan},
        {"task", core::task_tag(info)},
        {"key", lost.key ? json::value(encode(*lost.key)) : json::value(nullptr)},
        {"persistent", !core::is_ephemeral(info)},
        {"rate_usd_per_hour",
         lost.usd_per_hour ? json::value(*lost.usd_per_hour) : json::value(nullptr)},
        {"created_at", info.created_at == 0 ? json::value(nullptr) : json::value(info.created_at)}};
}

json::object encode(const cloud::plan_info& plan) {
    const auto number = [](const std::optional<double>& told) {
        return told ? json::value(*told) : json::value(nullptr);
    };
    return {{"id", plan.id},
            {"vcpu", number(plan.vcpu)},
            {"ram_gb", number(plan.ram_gb)},
            {"disk_gb", number(plan.disk_gb)},
            {"price_per_hour", number(plan.price_per_hour)}};
}

json::object encode_progress(const core::sandbox_key& key, const sandbox::progress& news) {
    return {{"key", encode(key)},
            {"state", core::to_string(news.state)},
            {"text", news.text},
            {"waited_s", seconds(news.waited)}};
}

json::object encode_entry(const exec::session& session) {
    json::object entry{{"exec_id", session.id()},
                       {"key", encode(session.key())},
                       {"phase", session.phase()},
                       {"elapsed_s", seconds(session.elapsed())},
                       {"output_bytes", session.output_end()},
                       {"sandbox_id", text_or_null(session.sandbox_id())},
                       {"reason", nullptr},
                       {"returncode", nullptr}};
    if (session.done()) {
        entry["reason"] = core::to_string(session.exit().reason);
        if (session.exit().returncode) {
            entry["returncode"] = *session.exit().returncode;
        }
    }
    return entry;
}

void append_output(std::string& to, const exec::session& session, const core::output_chunk& chunk,
                   bool raw) {
    json::object params{{"exec_id", session.id()},
                        {"stream", chunk.stream == core::output_stream::err ? "stderr" : "stdout"},
                        {"offset", chunk.offset},
                        {"pos", chunk.pos}};
    if (raw) {
        params["raw"] = chunk.bytes.size();
        to += format_notification("exec.output", params);
        to += chunk.bytes;
    } else if (is_utf8(chunk.bytes)) {
        append_notification(to, "exec.output", params, "data", chunk.bytes);
    } else {
        append_notification(to, "exec.output", params, "data_b64", base64_encode(chunk.bytes));
    }
}

json::object encode_exit(const exec::session& session, const exec::feed& feed) {
    const core::exec_exit& exit = session.exit();
    json::object params{{"exec_id", session.id()},
                        {"returncode", nullptr},
                        {"reason", core::to_string(exit.reason)},
                        {"started", core::to_string(exit.ran)},
                        {"recreated", session.recreated()},
                        {"generation", session.generation()},
                        {"output_bytes", session.output_end()},
                        {"dropped_bytes", feed.dropped()}};
    if (exit.returncode) {
        params["returncode"] = *exit.returncode;
    }
    if (session.created()) {
        params["created"] = true;
    }
    if (const std::string message = session.message(); !message.empty()) {
        params["message"] = message;
    }
    if (exit.error) {
        params["error"] = exec_error_object(*exit.error);
    }
    return params;
}

} // namespace sandboxd::rpc
