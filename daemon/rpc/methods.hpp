// The methods of the protocol: one typed handler each, found by name.
//
// A handler gets its params decoded, and answers by returning the result or throwing rpc_error: a
// request is answered exactly once because a coroutine ends exactly once. Handlers outlive the
// connection that called them; what they send to a closed one goes nowhere.
#pragma once

#include "rpc/params.hpp"
#include "rpc/services.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/json/value.hpp>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace sandboxd::rpc {

class connection;

// One call: who asks, and what may be used.
struct call {
    std::shared_ptr<connection> from;
    services& parts;
};

using handler = std::function<boost::asio::awaitable<json::value>(call, json::object)>;
using decoder = std::function<void(const json::object&)>; // throws if the params do not fit

// Whether who asks would still hear the answer.
std::function<bool()> listening(const call& from);

struct method {
    decoder check; // decodes and throws the result away; for tests
    handler run;
};

// Every method, by name. `hello` is among them; that it comes first is the connection's business.
const std::map<std::string, method, std::less<>>& methods();

// A handler for params of type P.
template <class P>
method bind(boost::asio::awaitable<json::value> (*run)(call, P)) {
    return {
        [](const json::object& params) { P::from(params); },
        [run](call from, json::object params) { return run(std::move(from), P::from(params)); }};
}

// methods_daemon.cpp
boost::asio::awaitable<json::value> hello(call from, hello_params params);
boost::asio::awaitable<json::value> daemon_ping(call from, no_params params);
boost::asio::awaitable<json::value> daemon_status(call from, no_params params);
boost::asio::awaitable<json::value> daemon_health(call from, no_params params);
boost::asio::awaitable<json::value> rpc_discover(call from, no_params params);
boost::asio::awaitable<json::value> account_set(call from, account_set_params params);
boost::asio::awaitable<json::value> plan_list(call from, no_params params);
// methods_sandbox.cpp
boost::asio::awaitable<json::value> sandbox_ensure(call from, ensure_params params);
boost::asio::awaitable<json::value> sandbox_release(call from, release_params params);
boost::asio::awaitable<json::value> sandbox_list(call from, no_params params);
boost::asio::awaitable<json::value> sandbox_get(call from, selector_params params);
boost::asio::awaitable<json::value> sandbox_start(call from, selector_params params);
boost::asio::awaitable<json::value> sandbox_stop(call from, forced_selector_params params);
boost::asio::awaitable<json::value> sandbox_terminate(call from, forced_selector_params params);
boost::asio::awaitable<json::value> sandbox_forget(call from, selector_params params);
boost::asio::awaitable<json::value> orphan_adopt(call from, adopt_params params);
boost::asio::awaitable<json::value> orphan_inspect(call from, orphan_params params);
boost::asio::awaitable<json::value> orphan_terminate(call from, orphan_params params);
// methods_exec.cpp
boost::asio::awaitable<json::value> exec_start(call from, exec_start_params params);
boost::asio::awaitable<json::value> exec_attach(call from, exec_attach_params params);
boost::asio::awaitable<json::value> exec_ack(call from, exec_ack_params params);
boost::asio::awaitable<json::value> exec_stdin(call from, exec_stdin_params params);
boost::asio::awaitable<json::value> exec_cancel(call from, exec_cancel_params params);
boost::asio::awaitable<json::value> exec_list(call from, exec_list_params params);
// methods_fs.cpp
boost::asio::awaitable<json::value> fs_push(call from, fs_push_params params);
boost::asio::awaitable<json::value> fs_put(call from, fs_put_params params);
boost::asio::awaitable<json::value> fs_get(call from, fs_fetch_params params);
boost::asio::awaitable<json::value> fs_pull(call from, fs_pull_params params);
boost::asio::awaitable<json::value> fs_delete(call from, fs_delete_params params);

} // namespace sandboxd::rpc
