// The daemon's objects as people like to read them. Pure.
#pragma once

#include "cli/text.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <string>
#include <string_view>

namespace sandboxd::cli {

namespace json = boost::json;

// The table of `sandboxes`; a sentence if there are none.
std::string render_sandboxes(const json::array& sandboxes, const style&);

// daemon.status's result, with exec.list's `execs`, as `status` shows it. A daemon of another
// version than `our_version` is pointed out.
std::string render_status(const json::object& status, const json::array& execs, const style&,
                          std::string_view our_version);

// A table of those of `execs` (exec.list) that have not ended, for whoever wants to attach to them
// or to cancel them; nothing if there are none.
std::string render_commands(const json::array& execs, const style&);

// Commands cannot run as they should: no key, not ready, or a health item of severity `error`.
bool degraded(const json::object& status);

// plan.list's result.
std::string render_plans(const json::object& plans, const style&);

// "sb_3fk2 (task default)", "sb_3fk2 (task t of profile p)"; without id "task t ...".
std::string name_of(const json::object& sandbox);

} // namespace sandboxd::cli
