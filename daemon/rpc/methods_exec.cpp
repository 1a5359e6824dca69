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
    params.request.want.client = from.from->peer();
    const exec::registry::start_outcome outcome = from.parts.execs.start(
        std::move(params.request),
        {from.from, params.offset, params.window, from.from->feed_of(id), true}, params.resume);
    from.from->own(outcome.output);
    co_return json::object{{"exec_id", id}, {"accepted", true}, {"attached", outcome.attached}};
}

asio::awaitable<json::value> exec_attach(call from, exec_attach_params params) {
    const std::shared_ptr<exec::session> session = from.parts.execs.find(params.exec_id);
    from.from->own(session->attach(
        {from.from, params.offset, params.window, from.from->feed_of(params.exec_id)}));
    co_return json::object{
        {"exec_id", params.exec_id}, {"phase", session->phase()}, {"attached", true}};
}

asio::awaitable<json::value> exec_ack(call from, exec_ack_params params) {
    const std::shared_ptr<exec::session> session = from.parts.execs.find(params.exec_id);
    if (const std::shared_ptr<exec::feed> feed = from.from->feed_of(params.exec_id)) {
        if (!feed->acknowledge(params.offset)) {
            throw rpc_error(error_name::invalid_params,
                            "'offset' is more than has been sent; nothing was done");
        }
    } else {
        session->acknowledged_end(params.offset);
    }
    co_return json::object{};
}

asio::awaitable<json::value> exec_stdin(call from, exec_stdin_params params) {
    const std::shared_ptr<exec::session> session = from.parts.execs.find(params.exec_id);
    const exec::input_answer answer = co_await session->take_input(std::move(params.chunk));
    co_return json::object{{"accepted", answer.accepted}, {"state", to_string(answer.state)}};
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
