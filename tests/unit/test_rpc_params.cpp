// Params to typed values: what each field becomes, what is refused, and that the complaint names
// the field.
#include "base/error.hpp"
#include "rpc/params.hpp"

#include <boost/json/parse.hpp>
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <string_view>

using namespace sandboxd;
using namespace sandboxd::rpc;

namespace {

json::object object_of(std::string_view text) {
    return json::parse(text).as_object();
}

template <class P>
P decoded(std::string_view text) {
    return P::from(object_of(text));
}

// What is said about params that do not fit; empty if they do.
template <class P>
std::string complaint(std::string_view text) {
    try {
        P::from(object_of(text));
    } catch (const rpc_error& error) {
        CHECK(error.name() == error_name::invalid_params);
        return error.what();
    }
    return {};
}

template <class P>
void refuses(std::string_view field, std::initializer_list<std::string> all) {
    for (const std::string& text : all) {
        CAPTURE(text);
        const std::string said = complaint<P>(text);
        CHECK(said.find("'" + std::string(field) + "'") != std::string::npos);
        CHECK(said.find("nothing was done") != std::string::npos);
    }
}

std::string exec_with(std::string_view more) {
    return R"({"exec_id":"e","key":{"profile":"p","task":"t"})" + std::string(more) + "}";
}

exec::request request_of(std::string_view more) {
    return decoded<exec_start_params>(exec_with(more)).request;
}

} // namespace

TEST_CASE("params: a method without any refuses every field") {
    CHECK(complaint<no_params>("{}").empty());
    refuses<no_params>("x", {R"({"x":null})", R"({"x":1})"});
}

TEST_CASE("params: hello") {
    const auto one = decoded<hello_params>(R"({"client":"c/1","protocol":1,"whatever":{}})");
    CHECK(one.client == "c/1");
    CHECK(one.least == 1);
    CHECK(one.most == 1);
    const auto range =
        decoded<hello_params>(R"({"client":"c","protocol":{"min":2,"max":5,"more":1}})");
    CHECK(range.least == 2);
    CHECK(range.most == 5);
    CHECK(decoded<hello_params>(R"({"client":"c","protocol":1.0})").least ==
          1); // as JSON Schema says
    refuses<hello_params>("client",
                          {R"({"protocol":1})", R"({"client":"","protocol":1})",
                           R"({"client":7,"protocol":1})",
                           R"({"client":")" + std::string(257, 'x') + R"(","protocol":1})"});
    refuses<hello_params>("protocol",
                          {R"({"client":"c"})", R"({"client":"c","protocol":"1"})",
                           R"({"client":"c","protocol":0})", R"({"client":"c","protocol":-1})",
                           R"({"client":"c","protocol":1.5})", R"({"client":"c","protocol":null})",
                           R"({"client":"c","protocol":[1]})"});
    refuses<hello_params>("protocol.min", {R"({"client":"c","protocol":{"max":1}})",
                                           R"({"client":"c","protocol":{"min":0,"max":1}})"});
    refuses<hello_params>("protocol.max", {R"({"client":"c","protocol":{"min":1}})",
                                           R"({"client":"c","protocol":{"min":2,"max":1}})"});
}

TEST_CASE("params: the key of a sandbox") {
    const auto params = decoded<ensure_params>(R"({"key":{"profile":"/home/a","task":"\u0000t"}})");
    CHECK(params.key.profile == "/home/a");
    CHECK(params.key.task == std::string("\0t", 2));
    CHECK(params.want.persistent);
    CHECK(params.want.plan.empty());
    refuses<ensure_params>("key", {"{}", R"({"key":null})", R"({"key":"p/t"})", R"({"key":[]})"});
    refuses<ensure_params>(
        "key.profile", {R"({"key":{"task":"t"}})", R"({"key":{"profile":"","task":"t"}})",
                        R"({"key":{"profile":1,"task":"t"}})",
                        R"({"key":{"profile":")" + std::string(1025, 'x') + R"(","task":"t"}})"});
    refuses<ensure_params>("key.task",
                           {R"({"key":{"profile":"p"}})", R"({"key":{"profile":"p","task":""}})"});
    refuses<ensure_params>("key.more", {R"({"key":{"profile":"p","task":"t","more":1}})"});
}

TEST_CASE("params: lengths are counted in characters") {
    std::string longest;
    for (int i = 0; i < 1024; ++i)
        longest += "\xF0\x9F\x98\x80";
    CHECK(
        complaint<ensure_params>(R"({"key":{"profile":")" + longest + R"(","task":"t"}})").empty());
    refuses<ensure_params>("key.profile",
                           {R"({"key":{"profile":")" + longest + R"(x","task":"t"}})"});
}

TEST_CASE("params: sandbox.ensure") {
    const auto params = decoded<ensure_params>(
        R"({"key":{"profile":"p","task":"t"},"persistent":false,"plan":"large"})");
    CHECK_FALSE(params.want.persistent);
    CHECK(params.want.plan == "large");
    const std::string key = R"({"key":{"profile":"p","task":"t"},)";
    CHECK_FALSE(params.want.idle_stop);
    CHECK(decoded<ensure_params>(key + R"("idle_stop_s":0})").want.idle_stop ==
          std::chrono::seconds(0));
    CHECK(decoded<ensure_params>(key + R"("idle_stop_s":30})").want.idle_stop ==
          std::chrono::seconds(30));
    refuses<ensure_params>("idle_stop_s",
                           {key + R"("idle_stop_s":29})", key + R"("idle_stop_s":-1})",
                            key + R"("idle_stop_s":31536001})", key + R"("idle_stop_s":60.5})",
                            key + R"("idle_stop_s":"60"})", key + R"("idle_stop_s":null})"});
    refuses<ensure_params>("persistent", {key + R"("persistent":"no"})", key + R"("persistent":0})",
                                          key + R"("persistent":null})"});
    refuses<ensure_params>("plan",
                           {key + R"("plan":""})", key + R"("plan":7})", key + R"("plan":null})",
                            key + R"("plan":")" + std::string(129, 'x') + R"("})"});
    refuses<ensure_params>("plans", {key + R"("plans":"large"})"});
}

TEST_CASE("params: sandbox.release") {
    const auto mode = [](const std::string& name) {
        return decoded<release_params>(R"({"key":{"profile":"p","task":"t"},"mode":")" + name +
                                       R"("})")
            .mode;
    };
    CHECK(mode("keep") == sandbox::release_mode::keep);
    CHECK(mode("stop") == sandbox::release_mode::stop);
    CHECK(mode("terminate") == sandbox::release_mode::terminate);
    const std::string key = R"({"key":{"profile":"p","task":"t"})";
    refuses<release_params>("mode", {key + "}", key + R"(,"mode":"KEEP"})", key + R"(,"mode":""})",
                                     key + R"(,"mode":1})"});
}

TEST_CASE("params: a sandbox by key or id, not both, not neither") {
    const auto by_key = decoded<selector_params>(R"({"key":{"profile":"p","task":"t"}})");
    REQUIRE(by_key.which.key);
    CHECK(by_key.which.key->task == "t");
    CHECK(by_key.which.id.empty());
    const auto by_id = decoded<selector_params>(R"({"id":"sb_1"})");
    CHECK_FALSE(by_id.which.key);
    CHECK(by_id.which.id == "sb_1");
    for (const char* text : {"{}", R"({"key":{"profile":"p","task":"t"},"id":"sb_1"})"}) {
        CHECK(complaint<selector_params>(text).find("exactly one") != std::string::npos);
        CHECK(complaint<forced_selector_params>(text).find("exactly one") != std::string::npos);
    }
    refuses<selector_params>("id", {R"({"id":""})", R"({"id":7})", R"({"id":null})"});
    refuses<selector_params>("key", {R"({"key":null})"});
    refuses<selector_params>("force", {R"({"id":"sb_1","force":true})"});
    CHECK_FALSE(decoded<forced_selector_params>(R"({"id":"sb_1"})").force);
    CHECK(decoded<forced_selector_params>(R"({"id":"sb_1","force":true})").force);
    refuses<forced_selector_params>("force", {R"({"id":"sb_1","force":1})"});
}

TEST_CASE("params: account.set never repeats the key") {
    CHECK(decoded<account_set_params>(R"({"api_key":"canary"})").api_key.reveal() == "canary");
    for (const char* text : {R"({"api_key":["canary"]})", R"({"api_key":"canary","more":"canary"})",
                             R"({"api_key":""})"}) {
        const std::string said = complaint<account_set_params>(text);
        CHECK_FALSE(said.empty());
        CHECK(said.find("canary") == std::string::npos);
    }
    refuses<account_set_params>("api_key",
                                {"{}", R"({"api_key":")" + std::string(4097, 'x') + R"("})"});
}

TEST_CASE("params: exec ids") {
    for (const std::string& id :
         {std::string("a"), std::string("0f3c-9.A_b"), std::string(128, 'z')}) {
        CHECK(decoded<exec_cancel_params>(R"({"exec_id":")" + id + R"("})").exec_id == id);
    }
    for (const std::string& id :
         {std::string(), std::string("-a"), std::string(".a"), std::string("_a"),
          std::string("a/b"), std::string("a b"), std::string("a\\n"), std::string("\xC3\xA4"),
          std::string("a\\u0000"), std::string(129, 'z')}) {
        refuses<exec_cancel_params>("exec_id", {R"({"exec_id":")" + id + R"("})"});
    }
    refuses<exec_cancel_params>("exec_id", {"{}", R"({"exec_id":1})"});
}

TEST_CASE("params: exec.start with argv") {
    const exec::request request = request_of(R"(,"argv":["ls",{"b64":"/w=="},""])");
    CHECK(request.exec_id == "e");
    CHECK(request.key == core::sandbox_key{"p", "t"});
    CHECK(request.command.argv == std::vector<std::string>{"ls", "\xff", ""});
    CHECK_FALSE(request.command.script);
    CHECK_FALSE(request.command.login);
    CHECK(request.command.cwd.empty());
    CHECK(request.command.env.empty());
    CHECK_FALSE(request.command.stdin_data);
    CHECK_FALSE(request.command.merge_output);
    CHECK_FALSE(request.timeout);
    CHECK(request.want.persistent);
    CHECK(request.want.plan.empty());
}

TEST_CASE("params: exec.start with everything") {
    const exec::request request = request_of(
        R"(,"script":{"b64":"ZXhpdCAz"},"login":true,"cwd":"/workspace/a","env":{"A":"1","B":{"b64":"/w=="}},)"
        R"("stdin":"","timeout_s":1.5,"merge_output":true,"window":4096,"persistent":false,"plan":"large")");
    CHECK(request.command.script == "exit 3");
    CHECK(request.command.argv.empty());
    CHECK(request.command.login);
    CHECK(request.command.cwd == "/workspace/a");
    REQUIRE(request.command.env.size() == 2);
    CHECK(request.command.env[0] == std::pair<std::string, std::string>{"A", "1"});
    CHECK(request.command.env[1] == std::pair<std::string, std::string>{"B", "\xff"});
    CHECK(request.command.stdin_data == "");
    CHECK(request.command.merge_output);
    CHECK(request.timeout == std::chrono::milliseconds(1'500));
    CHECK_FALSE(request.want.persistent);
    CHECK(request.want.plan == "large");
}

TEST_CASE("params: exec.start needs exactly one of argv and script, and login goes with script") {
    for (const char* more : {"", R"(,"argv":["a"],"script":"b")"}) {
        CHECK(complaint<exec_start_params>(exec_with(more))
                  .find("exactly one of 'argv', 'script' and 'script_size'") != std::string::npos);
    }
    refuses<exec_start_params>("login", {exec_with(R"(,"argv":["a"],"login":true)"),
                                         exec_with(R"(,"argv":["a"],"login":false)"),
                                         exec_with(R"(,"script":"a","login":1)")});
}

TEST_CASE("params: bytes are a string or base64, nothing else") {
    refuses<exec_start_params>("argv",
                               {exec_with(R"(,"argv":[])"), exec_with(R"(,"argv":"ls")"),
                                exec_with(R"(,"argv":null)"), exec_with(R"(,"argv":{"b64":""})")});
    refuses<exec_start_params>("argv[1]",
                               {exec_with(R"(,"argv":["a",1])"), exec_with(R"(,"argv":["a",null])"),
                                exec_with(R"(,"argv":["a",{"b64":"","more":1}])"),
                                exec_with(R"(,"argv":["a",{"b65":""}])"),
                                exec_with(R"(,"argv":["a",{"b64":7}])")});
    refuses<exec_start_params>("argv[0].b64", {exec_with(R"(,"argv":[{"b64":"a"}])"),
                                               exec_with(R"(,"argv":[{"b64":"Zg==\n"}])"),
                                               exec_with(R"(,"argv":[{"b64":"Zm9v----"}])")});
    refuses<exec_start_params>("script", {exec_with(R"(,"script":7)")});
    refuses<exec_start_params>("cwd", {exec_with(R"(,"argv":["a"],"cwd":7)")});
    refuses<exec_start_params>("stdin", {exec_with(R"(,"argv":["a"],"stdin":null)")});
    refuses<exec_start_params>("env", {exec_with(R"(,"argv":["a"],"env":["A=1"])")});
    refuses<exec_start_params>("env.A", {exec_with(R"(,"argv":["a"],"env":{"A":1})")});
    refuses<exec_start_params>("env.A.b64",
                               {exec_with(R"(,"argv":["a"],"env":{"A":{"b64":"!"}})")});
}

TEST_CASE("params: time-outs") {
    const auto timeout = [](const std::string& text) {
        return request_of(R"(,"argv":["a"],"timeout_s":)" + text).timeout;
    };
    using std::chrono::milliseconds;
    CHECK(timeout("2") == milliseconds(2'000));
    CHECK(timeout("0.0001") == milliseconds(1)); // never no limit at all
    CHECK(timeout("1e-300") == milliseconds(1));
    CHECK(timeout("1e300") == milliseconds(1'000'000'000'000));
    CHECK(timeout("18446744073709551615") == milliseconds(1'000'000'000'000));
    for (const char* text : {"0", "-1", "0.0", "-0.0", "\"1\"", "null", "[]"}) {
        refuses<exec_start_params>(
            "timeout_s", {exec_with(R"(,"argv":["a"],"timeout_s":)" + std::string(text))});
    }
}

TEST_CASE("params: input that comes in pieces") {
    CHECK(request_of(R"(,"script_size":5,"login":true,"stdin_open":true)").command.script_size ==
          5);
    CHECK(request_of(R"(,"argv":["a"],"stdin_open":true)").command.stdin_open);
    refuses<exec_start_params>("stdin_open",
                               {exec_with(R"(,"argv":["a"],"stdin":"","stdin_open":true)")});
    refuses<exec_start_params>("script_size", {exec_with(R"(,"script_size":0)"),
                                               exec_with(R"(,"script_size":104857601)")});
    const std::string sum(64, 'a');
    CHECK(request_of(R"(,"script_size":5,"script_sha256":")" + sum + "\"").command.script_sha256 ==
          sum);
    refuses<exec_start_params>(
        "script_sha256",
        {exec_with(R"(,"script_size":5,"script_sha256":"A)" + sum.substr(1) + "\""),
         exec_with(R"(,"script_size":5,"script_sha256":"abc")"),
         exec_with(R"(,"argv":["a"],"script_sha256":")" + sum + "\"")});
    const exec::input_chunk chunk =
        decoded<exec_stdin_params>(
            R"({"exec_id":"e","stream":"script","offset":3,"data_b64":"/w==","eof":true})")
            .chunk;
    CHECK(chunk.script);
    CHECK(chunk.offset == 3);
    CHECK(chunk.bytes == "\xff");
    CHECK(chunk.eof);
    refuses<exec_stdin_params>("data_b64",
                               {R"({"exec_id":"e","offset":0,"data_b64":"?"})",
                                R"({"exec_id":"e","offset":0,"data":"a","data_b64":"YQ=="})"});
    refuses<exec_stdin_params>("stream", {R"({"exec_id":"e","offset":0,"stream":"stdout"})"});
    refuses<exec_stdin_params>("offset", {R"({"exec_id":"e"})", R"({"exec_id":"e","offset":-1})"});
}

TEST_CASE("params: windows") {
    const auto window = [](const std::string& rest) {
        return decoded<exec_start_params>(exec_with(R"(,"argv":["a"])" + rest)).window;
    };
    CHECK(window("") == 1'048'576);
    CHECK(window(R"(,"window":4096)") == 4'096);
    CHECK(window(R"(,"window":16777216)") == 16'777'216);
    for (const char* text :
         {"4095", "16777217", "0", "-1", "4096.5", "\"4096\"", "null", "18446744073709551615"}) {
        refuses<exec_start_params>("window",
                                   {exec_with(R"(,"argv":["a"],"window":)" + std::string(text))});
    }
}

TEST_CASE("params: exec.ack, exec.cancel, exec.list") {
    const auto ack = decoded<exec_ack_params>(R"({"exec_id":"e","offset":9223372036854775807})");
    CHECK(ack.exec_id == "e");
    CHECK(ack.offset == 9'223'372'036'854'775'807u);
    refuses<exec_ack_params>("offset", {R"({"exec_id":"e"})", R"({"exec_id":"e","offset":-1})",
                                        R"({"exec_id":"e","offset":1.5})",
                                        R"({"exec_id":"e","offset":9223372036854775808})"});

    CHECK(decoded<exec_cancel_params>(R"({"exec_id":"e"})").signal == core::kill_signal::kill);
    CHECK(decoded<exec_cancel_params>(R"({"exec_id":"e","signal":"KILL"})").signal ==
          core::kill_signal::kill);
    CHECK(decoded<exec_cancel_params>(R"({"exec_id":"e","signal":"TERM"})").signal ==
          core::kill_signal::terminate);
    CHECK(decoded<exec_cancel_params>(R"({"exec_id":"e","signal":"INT"})").signal ==
          core::kill_signal::interrupt);
    refuses<exec_cancel_params>(
        "signal", {R"({"exec_id":"e","signal":"HUP"})", R"({"exec_id":"e","signal":9})",
                   R"({"exec_id":"e","signal":""})", R"({"exec_id":"e","signal":null})"});

    CHECK_FALSE(decoded<exec_list_params>("{}").key);
    CHECK(decoded<exec_list_params>(R"({"key":{"profile":"p","task":"t"}})").key->profile == "p");
    refuses<exec_list_params>("key", {R"({"key":null})"});
}
