// Sandboxes: bringing them up, letting go of them, stopping and deleting them.
#include "rpc/connection.hpp"
#include "rpc/encode.hpp"
#include "rpc/methods.hpp"
#include "sandbox/background_probe.hpp"

namespace sandboxd::rpc {
namespace asio = boost::asio;

namespace {

std::string_view to_string(sandbox::release_action action) {
    switch (action) {
    case sandbox::release_action::kept:
        return "kept";
    case sandbox::release_action::stopped:
        return "stopped";
    case sandbox::release_action::terminated:
        return "terminated";
    case sandbox::release_action::none:
        return "none";
    }
    return "none";
}

sandbox::progress_callback progress_to(const call& from, core::sandbox_key key) {
    return
        [client = std::weak_ptr(from.from), key = std::move(key)](const sandbox::progress& news) {
            if (const std::shared_ptr<connection> listener = client.lock()) {
                listener->on_progress(key, news);
            }
        };
}

} // namespace

asio::awaitable<json::value> sandbox_ensure(call from, ensure_params params) {
    params.want.still_there = listening(from);
    sandbox::manager& manager = from.parts.manager;
    const sandbox::ensured how = co_await manager.ensure(
        params.key, params.want, progress_to(from, params.key), from.from->peer());
    const sandbox::view shown = manager.get({params.key, {}});
    co_return json::object{{"sandbox", encode(shown)},
                           {"created", how.created},
                           {"resumed", how.resumed},
                           {"generation", shown.record.generation}};
}

asio::awaitable<json::value> sandbox_release(call from, release_params params) {
    const auto released =
        co_await from.parts.manager.release(params.key, params.mode, from.from->peer());
    json::object result{{"action", to_string(released.action)}, {"holders", released.holders}};
    if (!released.message.empty()) {
        result["message"] = released.message;
    }
    co_return result;
}

asio::awaitable<json::value> sandbox_list(call from, no_params) {
    json::array sandboxes;
    for (const sandbox::view& shown : from.parts.manager.list()) {
        sandboxes.push_back(encode(shown));
    }
    co_return json::object{{"sandboxes", std::move(sandboxes)}};
}

asio::awaitable<json::value> sandbox_get(call from, selector_params params) {
    co_return json::object{{"sandbox", encode(from.parts.manager.get(params.which))}};
}

asio::awaitable<json::value> sandbox_start(call from, selector_params params) {
    sandbox::manager& manager = from.parts.manager;
    // A key may be new; an id must be known.
    const core::sandbox_key key =
        params.which.key ? *params.which.key : manager.key_of(params.which);
    sandbox::wanted want;
    want.still_there = listening(from);
    co_await manager.ensure(key, want, progress_to(from, key), std::nullopt);
    co_return json::object{{"sandbox", encode(manager.get({key, {}}))}};
}

asio::awaitable<json::value> sandbox_stop(call from, forced_selector_params params) {
    sandbox::manager& manager = from.parts.manager;
    const core::sandbox_key key = manager.key_of(params.which);
    co_await manager.stop(params.which, params.force);
    co_return json::object{{"sandbox", encode(manager.get({key, {}}))}};
}

asio::awaitable<json::value> sandbox_terminate(call from, forced_selector_params params) {
    const std::string id = co_await from.parts.manager.terminate(params.which, params.force);
    co_return json::object{{"sandbox_id", id.empty() ? json::value(nullptr) : json::value(id)}};
}

asio::awaitable<json::value> sandbox_forget(call from, selector_params params) {
    const std::string id = co_await from.parts.manager.forget(params.which);
    co_return json::object{{"sandbox_id", id.empty() ? json::value(nullptr) : json::value(id)}};
}

asio::awaitable<json::value> orphan_adopt(call from, adopt_params params) {
    sandbox::manager& manager = from.parts.manager;
    co_await manager.adopt_orphan(params.id, params.key);
    co_return json::object{{"sandbox", encode(manager.get({params.key, {}}))}};
}

asio::awaitable<json::value> orphan_inspect(call from, orphan_params params) {
    const sandbox::background_answer found =
        co_await from.parts.manager.look_into_orphan(params.id);
    std::string_view inside = "unknown";
    if (found.what == core::background::running) {
        inside = "running";
    } else if (found.what == core::background::none) {
        inside = "nothing";
    }
    co_return json::object{
        {"sandbox_id", params.id},
        {"inside", inside},
        {"text", found.text.empty() ? json::value(nullptr) : json::value(found.text)}};
}

asio::awaitable<json::value> orphan_terminate(call from, orphan_params params) {
    co_await from.parts.manager.terminate_orphan(params.id);
    co_return json::object{{"sandbox_id", params.id}};
}

} // namespace sandboxd::rpc
