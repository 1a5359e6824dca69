// Commands. Their output and their end are sent by the connection that started them
// (rpc/connection).
#include "rpc/connection.hpp"
#include "rpc/encode.hpp"
#include "rpc/methods.hpp"

namespace sandboxd::rpc {
namespace asio = boost::asio;

asio::awaitable<json::value> exec_start(call from, exec_start_params params) {
    if (from.parts.stopping) {
        throw rpc_error(error_name::shutting_down,
                        "the daemon is stopping; the command has not run");
    }
    from.parts.account.require_configured();
    const std::string id = params.request.exec_id;
    from.parts.manager.hold(params.request.key, from.from->peer());
    from.from->own(from.parts.execs.start(std::move(params.request), from.from));
    co_return json::object{{"exec_id", id}, {"accepted", true}};
}

asio::awaitable<json::value> exec_ack(call from, exec_ack_params params) {
    if (!from.parts.execs.find(params.exec_id)->acknowledge(params.offset)) {
        throw rpc_error(error_name::invalid_params,
                        "'offset' is more than has been sent; nothing was done");
    }
    co_return json::object{};
}

asio::awaitable<json::value> exec_cancel(call from, exec_cancel_params params) {
    const exec::cancel_outcome outcome =
        co_await from.parts.execs.find(params.exec_id)->cancel(params.signal);
    json::object result{{"confirmed", outcome.confirmed}};
    if (!outcome.message.empty()) {
        result["message"] = outcome.message;
    }
    co_return result;
}

asio::awaitable<json::value> exec_list(call from, exec_list_params params) {
    json::array execs;
    for (const auto& each : from.parts.execs.list(params.key)) {
        execs.push_back(encode_entry(*each));
    }
    co_return json::object{{"execs", std::move(execs)}};
}

} // namespace sandboxd::rpc
