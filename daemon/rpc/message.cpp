#include "rpc/message.hpp"

#include "base/json_text.hpp"
#include "base/utf8.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

namespace sandboxd::rpc {
namespace {

malformed invalid(std::string what, json::value id = nullptr) {
    return {rpc_error(error_name::invalid_request, what + "; nothing was done"), std::move(id),
            false};
}

void append(std::string& to, const json::value& value);

void append_members(std::string& to, const json::object& object) {
    bool first = true;
    for (const auto& [name, value] : object) {
        to += first ? "" : ",";
        first = false;
        append_json_string(to, name);
        to += ':';
        append(to, value);
    }
}

void append(std::string& to, const json::object& object) {
    to += '{';
    append_members(to, object);
    to += '}';
}

void append(std::string& to, const json::array& array) {
    to += '[';
    for (std::size_t i = 0; i < array.size(); ++i) {
        to += i == 0 ? "" : ",";
        append(to, array[i]);
    }
    to += ']';
}

void append(std::string& to, const json::value& value) {
    if (const json::string* text = value.if_string()) {
        // One byte that is no text would cost its reader the whole connection.
        if (is_utf8(*text)) {
            append_json_string(to, *text);
        } else {
            append_json_string(to, repair_utf8(*text));
        }
    } else if (const json::object* object = value.if_object()) {
        append(to, *object);
    } else if (const json::array* array = value.if_array()) {
        append(to, *array);
    } else {
        to += json::serialize(value);
    }
}

std::string line_of(const json::object& message) {
    std::string line;
    append(line, message);
    line += '\n';
    return line;
}

} // namespace

request_message parse_request(std::string_view line) {
    boost::system::error_code error;
    json::value parsed = json::parse(line, error);
    if (error) {
        throw malformed{rpc_error(error_name::parse_error,
                                  "the line is not one JSON value: " + error.message()),
                        nullptr, true};
    }
    if (parsed.is_array()) {
        throw invalid("batches are not accepted");
    }
    if (!parsed.is_object()) {
        throw invalid("a request is a JSON object");
    }
    json::object& object = parsed.as_object();
    request_message request;
    if (const json::value* id = object.if_contains("id")) {
        if (!id->is_string() && !id->is_int64() && !id->is_uint64()) {
            throw invalid("'id' is neither a string nor an integer");
        }
        request.id = *id;
        request.answered = true;
    }
    const json::value* version = object.if_contains("jsonrpc");
    if (version == nullptr || !version->is_string() || version->as_string() != "2.0") {
        throw invalid("'jsonrpc' is not \"2.0\"", request.id);
    }
    const json::value* method = object.if_contains("method");
    if (method == nullptr || !method->is_string()) {
        throw invalid("'method' is missing or no string", request.id);
    }
    request.method = method->as_string();
    if (json::value* params = object.if_contains("params")) {
        if (!params->is_object()) {
            throw invalid("'params' is not an object", request.id);
        }
        request.params = std::move(params->as_object());
    }
    return request;
}

std::string format_result(const json::value& id, const json::value& result) {
    return line_of({{"jsonrpc", "2.0"}, {"id", id}, {"result", result}});
}

std::string format_error(const json::value& id, const rpc_error& error) {
    json::object data{{"name", info(error.name()).text},
                      {"retryable", error.retryable()},
                      {"hint", error.hint()}};
    if (error.sandbox_id && !error.sandbox_id->empty()) {
        data["sandbox_id"] = *error.sandbox_id;
    }
    return line_of({{"jsonrpc", "2.0"},
                    {"id", id},
                    {"error", json::object{{"code", info(error.name()).code},
                                           {"message", error.what()},
                                           {"data", std::move(data)}}}});
}

std::string format_notification(std::string_view method, const json::object& params) {
    return line_of({{"jsonrpc", "2.0"}, {"method", method}, {"params", params}});
}

void append_notification(std::string& to, std::string_view method, const json::object& params,
                         std::string_view name, std::string_view utf8) {
    to += R"({"jsonrpc":"2.0","method":)";
    append_json_string(to, method);
    to += R"(,"params":{)";
    append_members(to, params);
    to += params.empty() ? "" : ",";
    append_json_string(to, name);
    to += ':';
    append_json_string(to, utf8);
    to += "}}\n";
}

json::object exec_error_object(const rpc_error& error) {
    return {{"code", info(error.name()).code},
            {"name", info(error.name()).text},
            {"retryable", error.retryable()},
            {"hint", error.hint()}};
}

} // namespace sandboxd::rpc
