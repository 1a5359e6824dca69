// The params of every method, typed. What a field means stands in protocol/methods/; a test feeds
// every example there through these, and refuses any other field.
#pragma once

#include "base/secret.hpp"
#include "core/command.hpp"
#include "core/sandbox_record.hpp"
#include "exec/session.hpp"
#include "sandbox/manager.hpp"
#include "sync/service.hpp"

#include <boost/json/object.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::rpc {

namespace json = boost::json;

// `static from`: throws rpc_error invalid_params that names the field.
struct no_params {
    static no_params from(const json::object& object);
};

struct hello_params {
    std::string client;
    std::int64_t least = 1; // versions of the protocol that the client speaks
    std::int64_t most = 1;
    bool raw_output = false;
    static hello_params from(const json::object& object); // ignores what it does not know
};

struct account_set_params {
    secret api_key;
    static account_set_params from(const json::object& object);
};

struct ensure_params {
    core::sandbox_key key;
    sandbox::wanted want;
    static ensure_params from(const json::object& object);
};

struct release_params {
    core::sandbox_key key;
    sandbox::release_mode mode = sandbox::release_mode::keep;
    static release_params from(const json::object& object);
};

struct selector_params {
    sandbox::selector which;
    static selector_params from(const json::object& object);
};

struct forced_selector_params {
    sandbox::selector which;
    bool force = false;
    static forced_selector_params from(const json::object& object);
};

struct orphan_params {
    std::string id;
    static orphan_params from(const json::object& object);
};

struct adopt_params {
    std::string id;
    core::sandbox_key key;
    static adopt_params from(const json::object& object);
};

struct exec_start_params {
    exec::request request;
    std::uint64_t offset = 0; // to attach from, if the id is known
    std::size_t window = 0;   // bytes
    bool resume = false;
    static exec_start_params from(const json::object& object);
};

struct exec_ack_params {
    std::string exec_id;
    std::uint64_t offset = 0;
    static exec_ack_params from(const json::object& object);
};

struct exec_attach_params {
    std::string exec_id;
    std::uint64_t offset = 0;
    std::size_t window = 0; // bytes
    static exec_attach_params from(const json::object& object);
};

struct exec_stdin_params {
    std::string exec_id;
    exec::input_chunk chunk;
    static exec_stdin_params from(const json::object& object);
};

struct exec_cancel_params {
    std::string exec_id;
    core::kill_signal signal = core::kill_signal::kill;
    static exec_cancel_params from(const json::object& object);
};

struct fs_push_params {
    sync::push_request request;
    std::string transfer; // empty: no reports
    static fs_push_params from(const json::object& object);
};

struct fs_put_params {
    sync::push_request request;
    std::string transfer;
    static fs_put_params from(const json::object& object);
};

struct fs_fetch_params {
    sync::fetch_request request;
    std::string transfer;
    static fs_fetch_params from(const json::object& object);
};

struct fs_pull_params : fs_fetch_params {
    static fs_pull_params from(const json::object& object);
};

struct fs_delete_params {
    core::sandbox_key key;
    std::vector<std::string> remotes;
    static fs_delete_params from(const json::object& object);
};

struct exec_list_params {
    std::optional<core::sandbox_key> key;
    static exec_list_params from(const json::object& object);
};

} // namespace sandboxd::rpc
