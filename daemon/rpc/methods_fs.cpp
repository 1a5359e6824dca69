// Files in and out: the daemon's own transfers (sync/), told in the protocol's words.
#include "base/base64.hpp"
#include "base/error.hpp"
#include "base/utf8.hpp"
#include "rpc/connection.hpp"
#include "rpc/encode.hpp"
#include "rpc/methods.hpp"
#include "sync/path.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::rpc {
namespace asio = boost::asio;

namespace {

constexpr std::size_t most_named = 100; // as the schemas say

json::value bytes_value(const std::string& bytes) {
    if (is_utf8(bytes)) return json::value(bytes);
    return json::object{{"b64", base64_encode(bytes)}};
}

json::array named(const std::vector<sync::skipped_path>& paths) {
    json::array out;
    for (std::size_t i = 0; i < std::min(paths.size(), most_named); ++i) {
        json::object each{{"remote", bytes_value(paths[i].remote)},
                          {"reason", sync::to_string(paths[i].reason)},
                          {"text", repair_utf8(paths[i].text)}};
        if (!paths[i].host.empty()) each["host"] = bytes_value(paths[i].host);
        out.push_back(std::move(each));
    }
    return out;
}

std::uint64_t unnamed(const std::vector<sync::skipped_path>& paths) {
    return paths.size() - std::min(paths.size(), most_named);
}

json::value id_or_null(const std::string& id) {
    return id.empty() ? json::value(nullptr) : json::value(id);
}

sync::listeners listeners_for(const call& from, const core::sandbox_key& key,
                              const std::string& transfer) {
    const std::weak_ptr<connection> client(from.from);
    sync::listeners who;
    who.on_sandbox = [client, key](const sandbox::progress& news) {
        if (const auto listener = client.lock()) listener->on_progress(key, news);
    };
    if (transfer.empty()) return who;
    who.on_transfer = [client, key, transfer](const sync::transfer_progress& news) {
        const auto listener = client.lock();
        if (!listener) return;
        listener->mention("fs.progress",
                          {{"transfer", transfer},
                           {"key", encode(key)},
                           {"phase", news.phase},
                           {"done_bytes", news.done},
                           {"total_bytes", news.total ? json::value(*news.total) : nullptr}});
    };
    return who;
}

// `where`: the field, for people. /workspace itself is a place to copy to and from, but not to
// delete.
std::string remote_path(const std::string& given, const std::string& where, bool may_be_all) {
    std::optional<std::string> path = sync::workspace_path(given);
    if (!path || (!may_be_all && *path == sync::workspace)) {
        throw rpc_error(error_name::path_outside_workspace,
                        "'" + where + "' is not a path below /workspace; nothing was done");
    }
    return std::move(*path);
}

void check_running(const call& from) {
    if (from.parts.stopping) {
        throw rpc_error(error_name::shutting_down, "the daemon is stopping; nothing was done");
    }
    from.parts.account.require_configured();
}

asio::awaitable<sync::fetch_result> fetch(call from, fs_fetch_params params, bool as_tar) {
    check_running(from);
    params.request.as_tar = as_tar;
    params.request.remote = remote_path(params.request.remote, "remote", true);
    sync::listeners who = listeners_for(from, params.request.key, params.transfer);
    who.still_there = listening(from);
    co_return co_await from.parts.files.fetch(std::move(params.request), std::move(who));
}

json::object encode_fetched(const sync::fetch_result& fetched) {
    return {{"files", fetched.files},
            {"skipped", named(fetched.skipped)},
            {"skipped_more", fetched.skipped_more + unnamed(fetched.skipped)},
            {"bytes", fetched.bytes},
            {"wire_bytes", fetched.wire_bytes}};
}

} // namespace

asio::awaitable<json::value> fs_push(call from, fs_push_params params) {
    check_running(from);
    std::vector<sync::path_pair>& files = params.request.files;
    for (std::size_t i = 0; i < files.size(); ++i) {
        const std::string where = "files[" + std::to_string(i) + "].remote";
        files[i].remote = remote_path(files[i].remote, where, true);
    }
    from.parts.manager.hold(params.request.key, from.from->peer());
    sync::listeners who = listeners_for(from, params.request.key, params.transfer);
    const sync::push_result pushed =
        co_await from.parts.files.push(std::move(params.request), std::move(who));
    co_return json::object{{"sent", pushed.sent},
                           {"unchanged", pushed.unchanged},
                           {"skipped", named(pushed.skipped)},
                           {"skipped_more", unnamed(pushed.skipped)},
                           {"bytes", pushed.bytes},
                           {"wire_bytes", pushed.wire_bytes},
                           {"sandbox_id", id_or_null(pushed.sandbox_id)}};
}

asio::awaitable<json::value> fs_put(call from, fs_put_params params) {
    check_running(from);
    sync::path_pair& pair = params.request.files.front();
    pair.remote = remote_path(pair.remote, "remote", true);
    const std::string host = pair.host;
    std::string remote = pair.remote;
    from.parts.manager.hold(params.request.key, from.from->peer());
    sync::listeners who = listeners_for(from, params.request.key, params.transfer);
    const sync::push_result put =
        co_await from.parts.files.push(std::move(params.request), std::move(who));
    if (!put.into.empty()) remote = put.into;
    // What was named itself: if that was left out, so was all of it.
    const auto all = std::find_if(put.skipped.begin(), put.skipped.end(),
                                  [&](const auto& each) { return each.remote == remote; });
    if (all != put.skipped.end()) {
        if (all->reason == sync::skip_reason::in_the_way) {
            throw rpc_error(error_name::in_the_way, repair_utf8(remote + ": " + all->text));
        }
        if (all->reason != sync::skip_reason::failed) {
            throw rpc_error(error_name::host_file, repair_utf8(host + ": " + all->text));
        }
    }
    co_return json::object{{"files", put.sent},
                           {"into_directory", !put.into.empty()},
                           {"skipped", named(put.skipped)},
                           {"skipped_more", unnamed(put.skipped)},
                           {"bytes", put.bytes},
                           {"wire_bytes", put.wire_bytes},
                           {"sandbox_id", id_or_null(put.sandbox_id)}};
}

asio::awaitable<json::value> fs_get(call from, fs_fetch_params params) {
    const sync::fetch_result fetched = co_await fetch(std::move(from), std::move(params), false);
    json::object result = encode_fetched(fetched);
    result["kind"] = fetched.directory ? "directory" : "file";
    co_return result;
}

asio::awaitable<json::value> fs_pull(call from, fs_pull_params params) {
    const sync::fetch_result fetched = co_await fetch(std::move(from), std::move(params), true);
    co_return encode_fetched(fetched);
}

asio::awaitable<json::value> fs_delete(call from, fs_delete_params params) {
    check_running(from);
    for (std::size_t i = 0; i < params.remotes.size(); ++i) {
        const std::string where = "remotes[" + std::to_string(i) + "]";
        params.remotes[i] = remote_path(params.remotes[i], where, false);
    }
    const sync::delete_result deleted =
        co_await from.parts.files.remove(std::move(params.key), std::move(params.remotes));
    co_return json::object{{"deleted", deleted.deleted},
                           {"missing", deleted.missing},
                           {"failed", named(deleted.failed)},
                           {"failed_more", unnamed(deleted.failed)}};
}

} // namespace sandboxd::rpc
