// The params of fs.*. Whether a path in the sandbox may be used is for the handlers to say.
#include "rpc/decode.hpp"
#include "rpc/params.hpp"

#include <limits>

namespace sandboxd::rpc {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

std::string bytes(fields& in, std::string_view name) {
    std::optional<std::string> value = in.optional_bytes(name);
    if (!value) in.complain(name, "is missing");
    return std::move(*value);
}

std::string host_path(fields& in) {
    std::string path = bytes(in, "host");
    if (path.empty() || path.front() != '/') in.complain("host", "is not an absolute path");
    if (path.find('\0') != std::string::npos) in.complain("host", "has a zero byte");
    while (path.size() > 1 && path.back() == '/')
        path.pop_back();
    return path;
}

std::string transfer_name(fields& in) {
    return in.optional_text("transfer", 1, 128).value_or("");
}

sandbox::wanted wanted_from(fields& in) {
    sandbox::wanted want;
    want.persistent = in.flag("persistent", true);
    want.plan = in.optional_text("plan", 1, 128).value_or("");
    return want;
}

} // namespace

fs_push_params fs_push_params::from(const json::object& object) {
    fields in(object);
    fs_push_params params;
    params.request.key = in.key("key");
    const json::value* files = in.raw("files");
    if (files == nullptr || !files->is_array()) in.complain("files", "is not a list");
    for (std::size_t i = 0; i < files->as_array().size(); ++i) {
        const std::string where = "files[" + std::to_string(i) + "]";
        const json::value& each = files->as_array()[i];
        if (!each.is_object()) in.complain(where, "is not an object");
        fields pair(each.as_object(), where);
        std::string host = host_path(pair);
        std::string remote = bytes(pair, "remote");
        pair.finish();
        params.request.files.push_back({std::move(host), std::move(remote)});
    }
    params.request.force = in.flag("force", false);
    params.request.want = wanted_from(in);
    params.transfer = transfer_name(in);
    in.finish();
    return params;
}

fs_put_params fs_put_params::from(const json::object& object) {
    fields in(object);
    fs_put_params params;
    params.request.key = in.key("key");
    std::string host = host_path(in);
    std::string remote = bytes(in, "remote");
    params.request.files.push_back({std::move(host), std::move(remote)});
    params.request.remember = false;
    params.request.into_directory = in.flag("into_directory", false);
    params.request.want = wanted_from(in);
    params.transfer = transfer_name(in);
    in.finish();
    return params;
}

namespace {

void take_fetch(fields& in, fs_fetch_params& params) {
    params.request.key = in.key("key");
    params.request.remote = bytes(in, "remote");
    params.request.host = host_path(in);
    if (const auto most = in.optional_integer("max_bytes", 0, largest)) {
        params.request.max_bytes = static_cast<std::uint64_t>(*most);
    }
    params.request.generation = in.generation();
    params.transfer = transfer_name(in);
}

} // namespace

fs_fetch_params fs_fetch_params::from(const json::object& object) {
    fields in(object);
    fs_fetch_params params;
    take_fetch(in, params);
    in.finish();
    return params;
}

fs_pull_params fs_pull_params::from(const json::object& object) {
    fields in(object);
    fs_pull_params params;
    take_fetch(in, params);
    params.request.changed_only = in.flag("changed_only", false);
    in.finish();
    return params;
}

fs_delete_params fs_delete_params::from(const json::object& object) {
    fields in(object);
    fs_delete_params params;
    params.key = in.key("key");
    std::optional<std::vector<std::string>> remotes = in.optional_bytes_list("remotes");
    if (!remotes) in.complain("remotes", "is missing");
    params.remotes = std::move(*remotes);
    in.finish();
    return params;
}

} // namespace sandboxd::rpc
