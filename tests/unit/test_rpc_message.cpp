// JSON-RPC messages: what is a request, what is answered to what is none, and what ours look like.
#include "base/utf8.hpp"
#include "rpc/message.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>

#include <optional>
#include <string>

using namespace sandboxd;
using namespace sandboxd::rpc;

namespace {

// "invalid_request 7" or "parse_error null fatal"; empty if it is a request.
std::string complaint_about(std::string_view line) {
    try {
        parse_request(line);
    } catch (const malformed& problem) {
        return std::string(info(problem.error.name()).text) + " " + json::serialize(problem.id) +
               (problem.fatal ? " fatal" : "");
    }
    return {};
}

} // namespace

TEST_CASE("message: requests and notifications") {
    const request_message request =
        parse_request(R"({"jsonrpc":"2.0","id":7,"method":"m","params":{"a":[1]}})");
    CHECK(request.answered);
    CHECK(request.id == 7);
    CHECK(request.method == "m");
    CHECK(json::serialize(request.params) == R"({"a":[1]})");

    const request_message named =
        parse_request("  {\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"m\"}\r");
    CHECK(named.answered);
    CHECK(named.id == "x");
    CHECK(named.params.empty());

    const request_message notification = parse_request(R"({"jsonrpc":"2.0","method":"m"})");
    CHECK_FALSE(notification.answered);
    CHECK(notification.id.is_null());
}

TEST_CASE("message: ids are strings or integers") {
    for (const char* id :
         {"0", "-1", "9223372036854775807", "18446744073709551615", "\"\"", "\"a\""}) {
        CAPTURE(id);
        const auto request =
            parse_request(std::string(R"({"jsonrpc":"2.0","method":"m","id":)") + id + "}");
        CHECK(request.answered);
        CHECK(json::serialize(request.id) == id);
    }
    for (const char* id : {"null", "1.5", "1.0", "true", "[]", "{}", "18446744073709551616"}) {
        CAPTURE(id);
        CHECK(complaint_about(std::string(R"({"jsonrpc":"2.0","method":"m","id":)") + id + "}") ==
              "invalid_request null");
    }
}

TEST_CASE("message: what is not JSON ends the connection, what is no request does not") {
    for (const char* line : {"x", "{", R"({"jsonrpc":"2.0",})", "{} {}", "'a'", "\"\xff\"",
                             R"({"a":"\ud800"})", "{\"a\":\"\t\"}", "NaN"}) {
        CAPTURE(line);
        CHECK(complaint_about(line) == "parse_error null fatal");
    }
    for (const char* line : {"[]", R"([{"jsonrpc":"2.0","id":1,"method":"m"}])", "7", "\"m\"",
                             "null", "{}", R"({"id":null})"}) {
        CAPTURE(line);
        CHECK(complaint_about(line) == "invalid_request null");
    }
    CHECK(complaint_about(R"({"id":1,"method":"m"})") == "invalid_request 1");
    CHECK(complaint_about(R"({"jsonrpc":"1.0","id":1,"method":"m"})") == "invalid_request 1");
    CHECK(complaint_about(R"({"jsonrpc":2.0,"id":1,"method":"m"})") == "invalid_request 1");
    CHECK(complaint_about(R"({"jsonrpc":"2.0","id":"q"})") == "invalid_request \"q\"");
    CHECK(complaint_about(R"({"jsonrpc":"2.0","id":1,"method":7})") == "invalid_request 1");
    CHECK(complaint_about(R"({"jsonrpc":"2.0","id":1,"method":"m","params":[1]})") ==
          "invalid_request 1");
    CHECK(complaint_about(R"({"jsonrpc":"2.0","id":1,"method":"m","params":null})") ==
          "invalid_request 1");
}

TEST_CASE("message: depth is bounded") {
    const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
    CHECK(complaint_about(deep) == "parse_error null fatal");
}

TEST_CASE("message: answers") {
    CHECK(format_result(7, json::object{{"a", 1}}) ==
          "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":1}}\n");
    CHECK(format_notification("exec.exit", {{"b", "\n"}}) ==
          "{\"jsonrpc\":\"2.0\",\"method\":\"exec.exit\",\"params\":{\"b\":\"\\n\"}}\n");
}

TEST_CASE("message: bytes that are no text break none") {
    const json::object odd{{"text", "a\xff"}, {"list", json::array{"\xc3(", 7}}};
    const std::string line = format_notification("event", odd);
    CHECK(is_utf8(line));
    const json::value params = json::parse(line).at("params");
    CHECK(params ==
          json::value{{"text", "a\xef\xbf\xbd"}, {"list", json::array{"\xef\xbf\xbd(", 7}}});
}

TEST_CASE("message: errors carry what programs go by") {
    rpc_error error(error_name::sandbox_busy, "two commands run");
    error.sandbox_id = "sb_1";
    const std::string line = format_error("q", error);
    CHECK(line.ends_with("}\n"));
    const json::value parsed = json::parse(line);
    CHECK(parsed.at("id") == "q");
    const json::value& object = parsed.at("error");
    CHECK(object.at("code") == 3003);
    CHECK(object.at("message") == "two commands run");
    CHECK(object.at("data").at("name") == "sandbox_busy");
    CHECK(object.at("data").at("retryable") == true);
    CHECK(object.at("data").at("hint").is_string());
    CHECK(object.at("data").at("sandbox_id") == "sb_1");

    error.sandbox_id = "";
    CHECK(format_error(1, error).find("sandbox_id") == std::string::npos);
    error.sandbox_id.reset();
    CHECK(format_error(nullptr, error).find("\"id\":null") != std::string::npos);
    CHECK(format_error(nullptr, error).find("sandbox_id") == std::string::npos);
    CHECK(format_error(1, rpc_error(error_name::sandbox_busy, "m", "own hint")).find("own hint") !=
          std::string::npos);
}

TEST_CASE("message: every error of the table, here and in an exec.exit") {
    for (const error_info& each : error_table()) {
        CAPTURE(each.text);
        const rpc_error error(each.name, "m");
        const json::value answer = json::parse(format_error(1, error)).at("error");
        CHECK(answer.at("code") == each.code);
        CHECK(answer.at("data").at("name") ==
              json::string_view(each.text.data(), each.text.size()));
        const json::object inner = exec_error_object(error);
        CHECK(inner.at("code") == answer.at("code"));
        CHECK(inner.at("name") == answer.at("data").at("name"));
        CHECK(inner.at("retryable") == answer.at("data").at("retryable"));
        CHECK(inner.at("hint") == answer.at("data").at("hint"));
        CHECK_FALSE(inner.contains("message"));
    }
}
