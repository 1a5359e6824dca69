// The daemon itself and its account.
#include "core/cloud_error.hpp"
#include "protocol/openrpc.hpp"
#include "rpc/connection.hpp"
#include "rpc/encode.hpp"
#include "rpc/health.hpp"
#include "rpc/methods.hpp"
#include "sys/version.hpp"

#include <boost/json/parse.hpp>

#include <unistd.h>

namespace sandboxd::rpc {
namespace asio = boost::asio;

namespace {

json::value fingerprint_or_null(const sandbox::account& account) {
    return account.configured() ? json::value(account.fingerprint()) : json::value(nullptr);
}

std::string_view phase_of(const services& parts) {
    if (parts.stopping) {
        return "stopping";
    }
    return parts.manager.reconciled() || !parts.account.configured() ? "ready" : "recovering";
}

} // namespace

asio::awaitable<json::value> hello(call from, hello_params params) {
    constexpr std::int64_t spoken = 1;
    if (params.least > spoken || params.most < spoken) {
        throw rpc_error(
            error_name::incompatible_protocol,
            "this daemon (" + std::string(sys::version()) + ") speaks protocol " +
                std::to_string(spoken) + ", the client " + params.client + " speaks " +
                std::to_string(params.least) +
                (params.least == params.most ? "" : " to " + std::to_string(params.most)));
    }
    from.from->send_output_raw(params.raw_output);
    const sandbox::account& account = from.parts.account;
    co_return json::object{
        {"protocol", spoken},
        {"version", sys::version()},
        {"instance", from.parts.instance},
        {"capabilities", json::array{"exec.attach", "exec.stdin", "fs", "generation", "idle_stop",
                                     "pull_changed_only", "put_into_directory", "raw_output"}},
        {"account", json::object{{"configured", account.configured()},
                                 {"fingerprint", fingerprint_or_null(account)}}}};
}

asio::awaitable<json::value> daemon_ping(call, no_params) {
    co_return json::object{};
}

asio::awaitable<json::value> daemon_status(call from, no_params) {
    services& parts = from.parts;
    const std::chrono::duration<double> uptime =
        std::chrono::steady_clock::now() - parts.started_at;
    json::object money = encode(parts.manager.spending()); // counts what the views show
    json::array sandboxes;
    for (const sandbox::view& shown : parts.manager.list()) {
        sandboxes.push_back(encode(shown));
    }
    json::array orphans;
    for (const sandbox::orphan& lost : parts.manager.orphans()) {
        orphans.push_back(encode(lost));
    }
    co_return json::object{
        {"daemon", json::object{{"version", sys::version()},
                                {"pid", ::getpid()},
                                {"uptime_s", uptime.count()},
                                {"instance", parts.instance},
                                {"phase", phase_of(parts)},
                                {"socket", parts.socket.string()},
                                {"state_dir", parts.state_dir.string()}}},
        {"account",
         json::object{{"configured", parts.account.configured()},
                      {"base_url", parts.account.base_url()},
                      {"fingerprint", fingerprint_or_null(parts.account)},
                      {"max_active", parts.max_active},
                      {"active", parts.manager.reconciled() ? json::value(parts.manager.active())
                                                            : json::value(nullptr)}}},
        {"sandboxes", std::move(sandboxes)},
        {"money", std::move(money)},
        {"orphans", std::move(orphans)},
        {"health", health_items(parts)},
        {"counters", json::object{{"http_requests", parts.account.cloud().requests()},
                                  {"execs", parts.execs.started()},
                                  {"execs_running", parts.execs.running()},
                                  {"connections", parts.connections},
                                  {"rpc_requests", parts.requests}}}};
}

asio::awaitable<json::value> daemon_health(call from, no_params) {
    co_return json::object{{"health", health_items(from.parts)}};
}

asio::awaitable<json::value> rpc_discover(call, no_params) {
    co_return json::parse(protocol::openrpc_json());
}

asio::awaitable<json::value> account_set(call from, account_set_params params) {
    co_await from.parts.account.set_key(std::move(params.api_key));
    from.parts.manager.reconcile_soon();
    co_return json::object{{"configured", true}, {"fingerprint", from.parts.account.fingerprint()}};
}

asio::awaitable<json::value> plan_list(call from, no_params) {
    sandbox::account& account = from.parts.account;
    account.require_configured();
    const auto ask = [](cloud::client& on) { return on.catalog(); };
    const auto catalog = co_await account.ask(ask);
    if (!catalog.has_value()) {
        throw core::plain_error_from(catalog.error(), "asking for the plans");
    }
    json::array plans;
    bool has_medium = false;
    for (const cloud::plan_info& plan : *catalog) {
        has_medium = has_medium || plan.id == "medium";
        plans.push_back(encode(plan));
    }
    // The platform does not say which one it takes when none is named; `medium` is what its users
    // have seen (P).
    co_return json::object{{"plans", std::move(plans)},
                           {"default", has_medium ? json::value("medium") : json::value(nullptr)}};
}

} // namespace sandboxd::rpc
