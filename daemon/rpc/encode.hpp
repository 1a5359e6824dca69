// From the daemon's values to the protocol's JSON (protocol/types.json). Pure.
#pragma once

#include "core/output_queue.hpp"
#include "exec/session.hpp"
#include "sandbox/manager.hpp"

#include <boost/json/object.hpp>

namespace sandboxd::rpc {

namespace json = boost::json;

json::object encode(const core::sandbox_key& key);
json::object encode(const sandbox::view& shown);
json::object encode(const sandbox::money& spent);
json::object encode(const sandbox::orphan& lost);
json::object encode(const cloud::plan_info& plan);
json::object encode_progress(const core::sandbox_key& key, const sandbox::progress& news);
json::object encode_entry(const exec::session& session); // of exec.list
json::object encode_exit(const exec::session& session,
                         const exec::feed& feed); // params of exec.exit

// Appends an exec.output: a whole line, with `raw` followed by the bytes themselves.
void append_output(std::string& to, const exec::session& session, const core::output_chunk& chunk,
                   bool raw);

} // namespace sandboxd::rpc
