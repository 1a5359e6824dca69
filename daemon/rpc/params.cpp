#include "rpc/params.hpp"

#include "base/base64.hpp"
#include "base/error.hpp"
#include "rpc/decode.hpp"

#include <chrono>
#include <limits>

namespace sandboxd::rpc {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t longest_script = 100 << 20; // bytes: what fs/content takes in one call (P)
constexpr std::size_t longest_line = 1 << 20;

sandbox::wanted wanted_from(fields& in) {
    sandbox::wanted want;
    want.persistent = in.flag("persistent", true);
    want.plan = in.optional_text("plan", 1, 128).value_or("");
    return want;
}

sandbox::selector selector_from(fields& in) {
    if (in.has("key") == in.has("id")) {
        throw rpc_error(error_name::invalid_params,
                        "exactly one of 'key' and 'id' is needed; nothing was done");
    }
    return {in.optional_key("key"), in.optional_text("id", 1, 256).value_or("")};
}

// Seconds to milliseconds; what no clock can hold counts as a very long time.
std::chrono::milliseconds duration_from(double seconds) {
    constexpr double longest = 1e9;
    return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, longest) * 1000));
}

std::size_t window_from(fields& in) {
    return static_cast<std::size_t>(
        in.optional_integer("window", 4096, 16 << 20).value_or(1 << 20));
}

std::uint64_t offset_from(fields& in) {
    return static_cast<std::uint64_t>(in.optional_integer("offset", 0, largest).value_or(0));
}

} // namespace

no_params no_params::from(const json::object& object) {
    fields(object).finish();
    return {};
}

hello_params hello_params::from(const json::object& object) {
    fields in(object);
    hello_params params;
    params.client = in.text("client", 1, 256);
    const json::value* protocol = in.raw("protocol");
    if (protocol == nullptr) {
        in.complain("protocol", "is missing");
    }
    if (protocol->is_object()) {
        fields range(protocol->as_object(), "protocol");
        params.least = range.integer("min", 1, largest);
        params.most = range.integer("max", params.least, largest);
    } else {
        params.least = params.most = in.integer("protocol", 1, largest);
    }
    params.raw_output = in.flag("raw_output", false);
    return params;
}

account_set_params account_set_params::from(const json::object& object) {
    fields in(object);
    account_set_params params{secret(in.text("api_key", 1, 4096))};
    in.finish();
    return params;
}

ensure_params ensure_params::from(const json::object& object) {
    fields in(object);
    ensure_params params{in.key("key"), wanted_from(in)};
    constexpr std::int64_t least = core::least_idle_stop.count();
    constexpr std::int64_t year = 31'536'000;
    if (const auto idle_stop = in.optional_integer("idle_stop_s", 0, year)) {
        if (*idle_stop != 0 && *idle_stop < least) {
            in.complain("idle_stop_s", "is neither 0 nor at least " + std::to_string(least));
        }
        params.want.idle_stop = std::chrono::seconds(*idle_stop);
    }
    in.finish();
    return params;
}

release_params release_params::from(const json::object& object) {
    fields in(object);
    release_params params{in.key("key"), {}};
    const std::string mode = in.text("mode", 1, 32);
    if (mode == "keep") {
        params.mode = sandbox::release_mode::keep;
    } else if (mode == "stop") {
        params.mode = sandbox::release_mode::stop;
    } else if (mode == "terminate") {
        params.mode = sandbox::release_mode::terminate;
    } else {
        in.complain("mode", "is none of keep, stop, terminate");
    }
    in.finish();
    return params;
}

selector_params selector_params::from(const json::object& object) {
    fields in(object);
    selector_params params{selector_from(in)};
    in.finish();
    return params;
}

forced_selector_params forced_selector_params::from(const json::object& object) {
    fields in(object);
    forced_selector_params params{selector_from(in), in.flag("force", false)};
    in.finish();
    return params;
}

orphan_params orphan_params::from(const json::object& object) {
    fields in(object);
    orphan_params params{in.text("id", 1, 256)};
    in.finish();
    return params;
}

adopt_params adopt_params::from(const json::object& object) {
    fields in(object);
    adopt_params params{in.text("id", 1, 256), in.key("key")};
    in.finish();
    return params;
}

exec_start_params exec_start_params::from(const json::object& object) {
    fields in(object);
    exec_start_params params;
    exec::request& request = params.request;
    request.exec_id = in.exec_id();
    request.key = in.key("key");
    if (in.has("argv") + in.has("script") + in.has("script_size") != 1) {
        throw rpc_error(
            error_name::invalid_params,
            "exactly one of 'argv', 'script' and 'script_size' is needed; nothing was done");
    }
    core::command_spec& command = request.command;
    if (const auto size = in.optional_integer("script_size", 1, longest_script)) {
        command.script_size = static_cast<std::uint64_t>(*size);
    }
    if (in.has("script_sha256") && !command.script_size) {
        in.complain("script_sha256", "goes with 'script_size' only");
    }
    command.script_sha256 = in.sha256("script_sha256");
    command.argv = in.optional_bytes_list("argv").value_or(std::vector<std::string>{});
    command.script = in.optional_bytes("script");
    if (in.has("login") && in.has("argv")) {
        in.complain("login", "goes with a script only");
    }
    command.login = in.flag("login", false);
    command.cwd = in.optional_bytes("cwd").value_or("");
    command.env = in.bytes_map("env");
    command.stdin_data = in.optional_bytes("stdin");
    command.stdin_open = in.flag("stdin_open", false);
    if (command.stdin_data && command.stdin_open) {
        in.complain("stdin_open", "does not go with 'stdin'");
    }
    command.merge_output = in.flag("merge_output", false);
    if (const std::optional<double> timeout = in.optional_number("timeout_s")) {
        if (!(*timeout > 0)) {
            in.complain("timeout_s", "is not above zero");
        }
        request.timeout = std::max(duration_from(*timeout), std::chrono::milliseconds(1));
    }
    params.window = window_from(in);
    params.offset = offset_from(in);
    params.resume = in.flag("resume", false);
    request.want = wanted_from(in);
    request.generation = in.generation();
    in.finish();
    return params;
}

exec_ack_params exec_ack_params::from(const json::object& object) {
    fields in(object);
    exec_ack_params params{in.exec_id(),
                           static_cast<std::uint64_t>(in.integer("offset", 0, largest))};
    in.finish();
    return params;
}

exec_attach_params exec_attach_params::from(const json::object& object) {
    fields in(object);
    exec_attach_params params{in.exec_id(), offset_from(in), window_from(in)};
    in.finish();
    return params;
}

exec_stdin_params exec_stdin_params::from(const json::object& object) {
    fields in(object);
    exec_stdin_params params{in.exec_id(), {}};
    const std::string stream = in.optional_text("stream", 1, 32).value_or("stdin");
    if (stream != "stdin" && stream != "script") {
        in.complain("stream", "is none of stdin, script");
    }
    params.chunk.script = stream == "script";
    params.chunk.offset = static_cast<std::uint64_t>(in.integer("offset", 0, largest));
    if (in.has("data") && in.has("data_b64")) {
        in.complain("data_b64", "does not go with 'data'");
    }
    params.chunk.bytes = in.optional_text("data", 0, longest_line).value_or("");
    if (const auto encoded = in.optional_text("data_b64", 0, longest_line)) {
        const std::optional<std::string> decoded = base64_decode(*encoded);
        if (!decoded) {
            in.complain("data_b64", "is no base64");
        }
        params.chunk.bytes = *decoded;
    }
    params.chunk.eof = in.flag("eof", false);
    in.finish();
    return params;
}

exec_cancel_params exec_cancel_params::from(const json::object& object) {
    fields in(object);
    exec_cancel_params params{in.exec_id(), core::kill_signal::kill};
    const std::string signal = in.optional_text("signal", 1, 32).value_or("KILL");
    if (signal == "INT") {
        params.signal = core::kill_signal::interrupt;
    } else if (signal == "TERM") {
        params.signal = core::kill_signal::terminate;
    } else if (signal != "KILL") {
        in.complain("signal", "is none of INT, TERM, KILL");
    }
    in.finish();
    return params;
}

exec_list_params exec_list_params::from(const json::object& object) {
    fields in(object);
    exec_list_params params{in.optional_key("key")};
    in.finish();
    return params;
}

} // namespace sandboxd::rpc
