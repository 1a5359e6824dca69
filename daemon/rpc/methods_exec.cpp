// Commands. Their output and their end are sent by the connection that started them
// (rpc/connection).
#include "rpc/connection.hpp"
#include "rpc/encode.hpp"
#include "rpc/methods.hpp"

#include <boost/json/serialize.hpp>

#include <iterator>
#include <vector>

namespace sandboxd::rpc {
namespace asio = boost::asio;

namespace {

constexpr std::size_t most_listed = 768U << 10; // bytes of an answer, of the 1 MiB of a line

} // namespace

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
    } else if (params.offset > session->output_end()) {
        throw rpc_error(error_name::invalid_params,
                        "'offset' is more than has been sent; nothing was done");
    } else if (params.offset == session->output_end() && from.from->take_told(params.exec_id)) {
        session->acknowledged_end();
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
    // All that go on, and of those that have ended the newest that an answer can hold.
    std::vector<json::value> newest_first;
    std::size_t size = 0;
    bool all = true;
    const auto known = from.parts.execs.list(params.key);
    for (auto each = known.rbegin(); each != known.rend(); ++each) {
        json::value entry = encode_entry(**each);
        size += json::serialize(entry).size() + 1;
        if (size <= most_listed || !(*each)->done()) {
            newest_first.push_back(std::move(entry));
        } else {
            all = false;
        }
    }
    json::array execs(std::make_move_iterator(newest_first.rbegin()),
                      std::make_move_iterator(newest_first.rend()));
    json::object result{{"execs", std::move(execs)}};
    if (!all) {
        result["truncated"] = true;
    }
    co_return result;
}

} // namespace sandboxd::rpc
