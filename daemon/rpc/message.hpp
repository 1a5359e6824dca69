// JSON-RPC 2.0 messages: reading requests, writing answers and notifications. Pure.
#pragma once

#include "base/error.hpp"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::rpc {

namespace json = boost::json;

struct request_message {
    json::value id; // string or integer; null: a notification, never answered
    bool answered = false;
    std::string method;
    json::object params; // empty if there were none
};

// A line that is no request: what to answer, to which id (null if none can be told), and whether
// the connection can go on after it.
struct malformed {
    rpc_error error;
    json::value id;
    bool fatal = false;
};

// Throws malformed.
request_message parse_request(std::string_view line);

// Each is one line with its newline.
std::string format_result(const json::value& id, const json::value& result);
std::string format_error(const json::value& id, const rpc_error& error);
std::string format_notification(std::string_view method, const json::object& params);

// Appends a notification whose params have one member more, a text that is not copied on its way:
// output.
void append_notification(std::string& to, std::string_view method, const json::object& params,
                         std::string_view name, std::string_view utf8);

// The object that stands under "error" in an exec.exit: the answer's, without its message.
json::object exec_error_object(const rpc_error& error);

} // namespace sandboxd::rpc
