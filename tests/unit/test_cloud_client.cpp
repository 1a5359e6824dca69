// The calls, against a server that does what the test says: pooling, faults at every step,
// time-outs, pages.
#include "cloud_server.hpp"

#include <map>

using namespace sandboxd;
using namespace sandboxd::cloud;
using namespace sandboxd::cloud::test;
using std::chrono::milliseconds;

namespace {

using strings = std::vector<std::string>;

using bench = client_bench;

// A server that sends `text` for the first request and then does `after`.
scripted_server::script first(std::string text, std::function<void(peer&)> after = {}) {
    return [text = std::move(text), after = std::move(after)](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        co_await one.write(text);
        if (after) {
            after(one);
        } else {
            while (co_await one.request()) {
            }
        }
    };
}

void hang_up(peer& one) {
    one.close();
}
void abort_it(peer& one) {
    one.reset();
}

} // namespace

TEST_CASE("cloud client: many calls share one connection, and each carries what it must") {
    std::vector<http_message> seen;
    bench b(answering([&seen](const http_message& request) {
        seen.push_back(request);
        const std::string target = request.target();
        if (request.method() == http::verb::get && target == "/v1/sandboxes")
            return http_answer(200, "[" + sandbox_json + "]");
        if (target == "/v1/sandboxes/catalog") return http_answer(200, R"([{"id":"medium"}])");
        if (request.method() == http::verb::get) return http_answer(200, sandbox_json);
        return http_answer(200, "{}");
    }));
    CHECK(b.wait(b.api->list())->size() == 1);
    CHECK(b.wait(b.api->get("sb/1"))->state == sandbox_state::running);
    CHECK(b.wait(b.api->catalog())->front().id == "medium");
    CHECK(b.wait(b.api->start("sb_1")).has_value());
    CHECK(b.wait(b.api->stop("sb_1")).has_value());
    CHECK(b.wait(b.api->remove("sb_1")).has_value());
    CHECK(
        b.wait(b.api->put_content("sb_1", "/workspace/a b", std::string("\0\xff", 2))).has_value());
    CHECK(b.server.connections == 1);
    CHECK(b.api->requests() == 7);
    CHECK(b.api->idle_connections() == 1);

    std::vector<std::string> lines;
    for (const auto& one : seen) {
        lines.push_back(std::string(one.method_string()) + " " + std::string(one.target()));
        CHECK(one["Authorization"] == "Bearer k-canary");
        CHECK(b.server.url() == "http://" + std::string(one["Host"]));
        CHECK(one["User-Agent"] == "test/1");
    }
    CHECK(lines ==
          std::vector<std::string>{"GET /v1/sandboxes", "GET /v1/sandboxes/sb%2F1",
                                   "GET /v1/sandboxes/catalog", "POST /v1/sandboxes/sb_1/start",
                                   "POST /v1/sandboxes/sb_1/stop", "DELETE /v1/sandboxes/sb_1",
                                   "PUT /v1/sandboxes/sb_1/fs/content?path=/workspace/a%20b"});
    CHECK(seen[3]["Content-Length"] == "0");
    CHECK(seen[6].body() == std::string("\0\xff", 2));
    CHECK(seen[6]["Content-Type"] == "application/octet-stream");
}

TEST_CASE("cloud client: the base URL's prefix comes before every path") {
    std::string target;
    bench b(answering([&target](const http_message& request) {
                target = request.target();
                return http_answer(200, "[]");
            }),
            [](client_options& options) { options.base_url += "/pre/fix/"; });
    CHECK(b.wait(b.api->list()).has_value());
    CHECK(target == "/pre/fix/v1/sandboxes");
}

TEST_CASE("cloud client: a create always has a fresh connection") {
    std::string body;
    bench b(answering([&body](const http_message& request) {
        body = request.body();
        return http_answer(200, sandbox_json);
    }));
    CHECK(b.wait(b.api->get("sb_1")).has_value());
    CHECK(*b.wait(b.api->create({"", {{"a", "b"}}, std::chrono::seconds(60)})) == "sb_1");
    CHECK(b.server.connections == 2);
    CHECK(b.api->idle_connections() == 2);
    CHECK(body == R"({"image":"","plan":"","tags":{"a":"b"},"timeout_seconds":60})");
}

TEST_CASE(
    "cloud client: nothing is sent without a key, to a wrong place or for an id that is none") {
    bench b(answering([](const http_message&) { return http_answer(200, "{}"); }));
    for (const std::string& id : strings{"", ".", ".."}) {
        CHECK(b.wait(b.api->get(id)).error().kind == failure_kind::bad_request);
        CHECK(b.wait(b.api->start(id)).error().kind == failure_kind::bad_request);
        CHECK(b.wait(b.api->stop(id)).error().kind == failure_kind::bad_request);
        CHECK(b.wait(b.api->remove(id)).error().kind == failure_kind::bad_request);
        CHECK(b.wait(b.api->exec(id, {"true"}, std::chrono::seconds(0))).error().kind ==
              failure_kind::bad_request);
        CHECK(b.wait(b.api->put_content(id, "/workspace/a", "")).error().kind ==
              failure_kind::bad_request);
    }
    for (const std::string& key : strings{"", "a b", "a\r\nX: y", "\xff"}) {
        b.api->set_key(secret(key));
        const auto refused = b.wait(b.api->get("sb_1"));
        CHECK(refused.error().kind == failure_kind::unauthorized);
    }
    CHECK(b.wait(b.api->put_content("sb_1", "/workspace/a", std::string((100 << 20) + 1, 'x')))
              .error()
              .kind == failure_kind::too_large);
    CHECK(b.server.connections == 0);
    CHECK(b.api->requests() == 0);
    CHECK_THROWS_AS(client(b.io.get_executor(), options_for("http://api.deepinfra.com")),
                    std::invalid_argument);
    CHECK_THROWS_AS(client(b.io.get_executor(), options_for("")), std::invalid_argument);
}

TEST_CASE("cloud client: what the server says of the connection is honoured") {
    for (const std::string& fields : strings{"Connection: close\r\n", "Keep-Alive: timeout=1\r\n",
                                             "Keep-Alive: timeout=0, max=9\r\n"}) {
        CAPTURE(fields);
        bench b(answering(
            [&fields](const http_message&) { return http_answer(200, sandbox_json, fields); }));
        CHECK(b.wait(b.api->get("sb_1")).has_value());
        CHECK(b.api->idle_connections() == 0);
        CHECK(b.wait(b.api->get("sb_1")).has_value());
        CHECK(b.server.connections == 2);
    }
    bench b(answering([](const http_message&) {
        return http_answer(200, sandbox_json, "Keep-Alive: timeout=60\r\n");
    }));
    CHECK(b.wait(b.api->get("sb_1")).has_value());
    CHECK(b.api->idle_connections() == 1);
    // HTTP/1.0 keeps alive only if it says so; a body up to the end of the connection is an answer
    // too.
    for (const std::string& text :
         strings{"HTTP/1.0 200 OK\r\nContent-Length: 39\r\n\r\n" + sandbox_json,
                 "HTTP/1.1 200 OK\r\n\r\n" + sandbox_json}) {
        bench old(first(text, hang_up));
        CHECK(old.wait(old.api->get("sb_1")).has_value());
        CHECK(old.api->idle_connections() == 0);
    }
}

TEST_CASE("cloud client: a connection at rest is closed by a timer") {
    bench b(answering([](const http_message&) { return http_answer(200, sandbox_json); }),
            [](client_options& options) { options.pool_idle = milliseconds(20); });
    CHECK(b.wait(b.api->get("sb_1")).has_value());
    CHECK(b.api->idle_connections() == 1);
    run_until(b.io, [&b] { return b.server.ended == 1; });
    CHECK(b.api->idle_connections() == 0);
    CHECK(b.wait(b.api->get("sb_1")).has_value());
    CHECK(b.server.connections == 2);
}

TEST_CASE("cloud client: a connection that was closed or spoken on while it rested is not used") {
    for (const bool speaks : {false, true}) {
        bool acted = false;
        bench b([&acted, speaks](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            co_await one.write(http_answer(200, sandbox_json));
            if (speaks) {
                co_await one.write("HTTP/1.1 408 Too late\r\nConnection: close\r\n\r\n");
                acted = true;
                co_await one.request();
            } else {
                one.close();
                acted = true;
            }
        });
        CHECK(b.wait(b.api->get("sb_1")).has_value());
        run_until(b.io, [&acted] { return acted; });
        CHECK(b.wait(b.api->stop("sb_1")).has_value());
        CHECK(b.server.connections == 2);
        CHECK(b.api->requests() == 2);
    }
}

TEST_CASE("cloud client: dropped before the answer, a GET on a pooled connection is sent once "
          "more, all else never") {
    int requests = 0;
    const auto drops_second = [&requests](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        ++requests;
        co_await one.write(http_answer(200, sandbox_json));
        const auto second = co_await one.request();
        if (second) ++requests;
    };
    {
        bench b(drops_second);
        CHECK(b.wait(b.api->get("sb_1")).has_value());
        CHECK(b.wait(b.api->get("sb_1")).has_value());
        CHECK(requests == 3);
        CHECK(b.api->requests() == 3);
        CHECK(b.server.connections == 2);
    }
    requests = 0;
    {
        bench b(drops_second);
        CHECK(b.wait(b.api->get("sb_1")).has_value());
        const auto lost = b.wait(b.api->stop("sb_1"));
        CHECK(lost.error().kind == failure_kind::interrupted);
        CHECK(lost.error().effect_unknown());
        CHECK(requests == 2);
        CHECK(b.server.connections == 1);
        CHECK(b.api->idle_connections() == 0);
    }
    requests = 0;
    {
        bench b([&requests](peer& one) -> asio::awaitable<void> {
            const auto second = co_await one.request();
            if (second) ++requests;
        });
        CHECK(b.wait(b.api->get("sb_1")).error().kind == failure_kind::interrupted);
        CHECK(requests == 1);
    }
    requests = 0;
    { // One byte of the answer came: the server lives and has acted.
        bench b([&requests](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            co_await one.write(http_answer(200, sandbox_json));
            const auto second = co_await one.request();
            if (second) ++requests;
            co_await one.write("H");
        });
        CHECK(b.wait(b.api->get("sb_1")).has_value());
        CHECK(b.wait(b.api->get("sb_1")).error().kind == failure_kind::interrupted);
        CHECK(requests == 1);
    }
}

TEST_CASE("cloud client: an answer cut at every byte is never taken for a whole one") {
    const std::string whole = http_answer(200, sandbox_json);
    for (std::size_t i = 0; i < whole.size(); ++i) {
        bench b(first(whole.substr(0, i), i % 2 == 0 ? hang_up : abort_it));
        const auto cut = b.wait(b.api->get("sb_1"));
        REQUIRE(!cut.has_value());
        CHECK(cut.error().kind == failure_kind::interrupted);
        CHECK(b.api->idle_connections() == 0);
    }
    const std::string pieces =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(sandbox_json) + last_chunk;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        bench b(first(pieces.substr(0, i), hang_up));
        REQUIRE(b.wait(b.api->get("sb_1")).error().kind == failure_kind::interrupted);
    }
}

TEST_CASE("cloud client: an answer in single bytes, with interim ones before it") {
    bench b([](peer& one) -> asio::awaitable<void> {
        while (co_await one.request()) {
            const std::string all =
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: <x>\r\n\r\n"
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" +
                chunk(sandbox_json) + last_chunk;
            for (const char c : all)
                co_await one.write(std::string(1, c));
        }
    });
    CHECK(b.wait(b.api->get("sb_1"))->id == "sb_1");
    CHECK(b.wait(b.api->get("sb_1"))->id == "sb_1");
    CHECK(b.server.connections == 1);
}

TEST_CASE("cloud client: the status counts even if its body was lost") {
    bench cut(first("HTTP/1.1 409 X\r\nContent-Length: 100\r\n\r\n{\"error\":\"wrong st", hang_up));
    CHECK(cut.wait(cut.api->start("sb_1")).error().kind == failure_kind::conflict);
    bench unproven(
        first("HTTP/1.1 404 X\r\nContent-Length: 100\r\n\r\n{\"error\":\"unkn", hang_up));
    CHECK(unproven.wait(unproven.api->get("sb_1")).error().kind ==
          failure_kind::not_found_unproven);
}

TEST_CASE("cloud client: error answers come out as failures, and the connection lives on") {
    std::string answer;
    bench b(answering([&answer](const http_message&) { return answer; }));
    const auto told = [&b, &answer](int status, const std::string& body,
                                    const std::string& fields = {}) {
        answer = http_answer(status, body, fields);
        return b.wait(b.api->start("sb_1")).error();
    };
    CHECK(told(404, R"({"detail":"Sandbox not found"})").kind == failure_kind::not_found);
    CHECK(told(404, "<html>").kind == failure_kind::not_found_unproven);
    CHECK(told(401, R"({"error":"no such key: k-canary"})").message == "no such key: ***");
    CHECK(told(429, R"({"detail":{"error":"You have reached the maximum of 5 active sandboxes"}})")
              .kind == failure_kind::cap_reached);
    const auto limited = told(429, "", "Retry-After: 2\r\n");
    CHECK(limited.kind == failure_kind::rate_limited);
    CHECK(limited.retry_after == std::chrono::seconds(2));
    const auto dated = told(
        503, "",
        "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:49:47 GMT\r\n");
    CHECK(dated.kind == failure_kind::no_capacity);
    CHECK(dated.retry_after == std::chrono::seconds(10));
    CHECK(told(302, "", "Location: https://evil.example/\r\n").kind == failure_kind::bad_answer);
    CHECK(told(200, "<html>log in</html>").kind == failure_kind::bad_answer);
    answer = "HTTP/1.1 204 No Content\r\n\r\n";
    CHECK(b.wait(b.api->start("sb_1")).has_value());
    CHECK(b.server.connections == 1);
}

TEST_CASE("cloud client: only a good answer of the API tells the time") {
    std::string answer;
    int told = 0;
    bool dated = true;
    bench b(answering([&answer](const http_message&) { return answer; }),
            [&told, &dated](client_options& options) {
                options.on_date = [&told, &dated](auto said) {
                    ++told;
                    dated = said.has_value();
                };
            });
    const std::string date = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    for (const auto& [status, body] : {std::pair(200, "<html>log in</html>"),
                                       {200, ""},
                                       {200, "{\"state\":"},
                                       {401, "{}"},
                                       {404, "{}"},
                                       {429, "{}"},
                                       {503, "{}"}}) {
        answer = http_answer(status, body, date);
        b.wait(b.api->get("sb_1"));
        b.wait(b.api->start("sb_1"));
        b.wait(b.api->list());
        CHECK(told == 0);
    }
    answer = http_answer(200, sandbox_json);
    CHECK(b.wait(b.api->get("sb_1")).has_value());
    CHECK(told == 1);
    CHECK_FALSE(dated);
    told = 0;
    answer = http_answer(200, sandbox_json, date);
    CHECK(b.wait(b.api->get("sb_1")).has_value());
    CHECK(dated);
    CHECK(told == 1);
    answer = http_answer(200, "{}", date);
    CHECK(b.wait(b.api->start("sb_1")).has_value());
    CHECK(told == 2);
}

TEST_CASE("cloud client: what is not proper HTTP, or too much of it, is a bad answer") {
    for (const std::string& text : strings{
             std::string("SSH-2.0-OpenSSH_9.2\r\n\r\n"),
             std::string("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
             "HTTP/1.1 200 OK\r\nX: " + std::string(70'000, 'x') + "\r\n\r\n",
             std::string("HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"),
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + sandbox_json,
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + std::string(200'000, 'x'),
             std::string(
                 "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"),
             std::string("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{}"),
             http_answer(200, std::string(2000, ' ')),
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" +
                 chunk(std::string(1001, ' ')),
             "HTTP/1.1 200 OK\r\n\r\n" + std::string(1001, ' '),
             http_answer(200, "{\"sandbox_id\":5}")}) {
        CAPTURE(text.substr(0, 60));
        bench b(first(text), [](client_options& options) { options.max_answer = 1000; });
        const auto bad = b.wait(b.api->get("sb_1"));
        REQUIRE(!bad.has_value());
        CHECK(bad.error().kind == failure_kind::bad_answer);
    }
    // Interim answers without end.
    std::string endless;
    for (int i = 0; i < 100; ++i)
        endless += "HTTP/1.1 100 Continue\r\n\r\n";
    bench b(first(endless));
    CHECK(b.wait(b.api->get("sb_1")).error().kind == failure_kind::bad_answer);
}

TEST_CASE("cloud client: every step has its time-out") {
    const auto quick = [](client_options& options) { options.answer_timeout = milliseconds(40); };
    const std::string header = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
    for (const std::string& sent :
         strings{std::string(), std::string("HTTP/1.1 2"), header, header + "{"}) {
        CAPTURE(sent);
        bench b(first(sent), quick);
        const auto late = b.wait(b.api->get("sb_1"));
        REQUIRE(!late.has_value());
        CHECK(late.error().kind == failure_kind::interrupted);
        CHECK(late.error().message.find("in time") != std::string::npos);
        CHECK(b.api->requests() == 1);
        CHECK(b.api->idle_connections() == 0);
    }
    // A pooled GET that timed out is not sent again.
    bench again(answering([n = 0](const http_message&) mutable {
                    return n++ == 0 ? http_answer(200, sandbox_json) : std::string();
                }),
                quick);
    CHECK(again.wait(again.api->get("sb_1")).has_value());
    CHECK(again.wait(again.api->get("sb_1")).error().kind == failure_kind::interrupted);
    CHECK(again.api->requests() == 2);
}

TEST_CASE("cloud client: bytes that trickle for ever do not keep a call for ever") {
    const auto trickle = [](std::string begin) {
        return [begin = std::move(begin)](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            bool alive = co_await one.write(begin);
            asio::steady_timer pace(one.executor());
            while (alive) {
                pace.expires_after(milliseconds(5));
                co_await pace.async_wait(as_result);
                alive = co_await one.write("x");
            }
        };
    };
    for (const std::string& begin : strings{"HTTP/1.1 200 OK\r\nX: ", "HTTP/1.1 200 OK\r\n\r\n"}) {
        bench b(trickle(begin),
                [](client_options& options) { options.answer_timeout = milliseconds(30); });
        CHECK(b.wait(b.api->get("sb_1")).error().kind == failure_kind::interrupted);
    }
}

TEST_CASE("cloud client: a server that is not there is unreachable") {
    asio::io_context io;
    std::string url;
    { // a port that nobody listens on any more
        const asio::ip::tcp::acceptor gone(io, {asio::ip::make_address("127.0.0.1"), 0});
        url = "http://127.0.0.1:" + std::to_string(gone.local_endpoint().port());
    }
    client api(io.get_executor(), options_for(url));
    api.set_key(secret("k"));
    const auto said = await(io, api.stop("sb_1"));
    CHECK(said.error().kind == failure_kind::unreachable);
    CHECK(!said.error().effect_unknown());
    CHECK(api.requests() == 0);
}

TEST_CASE("cloud client: a listing is read to its last page") {
    std::vector<std::string> targets;
    std::map<std::string, std::string> pages;
    bench b(answering([&](const http_message& request) {
        targets.emplace_back(request.target());
        const auto page = pages.find(targets.back());
        return page == pages.end() ? http_answer(404, "") : page->second;
    }));
    const auto ids = [&b]() {
        const auto all = b.wait(b.api->list());
        std::string out;
        if (!all.has_value())
            return std::string(all.error().kind == failure_kind::bad_answer ? "bad" : "other");
        for (const auto& one : *all)
            out += one.id;
        return out;
    };
    const std::string base = "/v1/sandboxes";
    pages = {
        {base, http_answer(200, R"({"sandboxes":[{"sandbox_id":"a"}],"next_cursor":"x y"})")},
        {base + "?cursor=x%20y",
         http_answer(
             200, R"({"sandboxes":[{"sandbox_id":"a"},{"sandbox_id":"b"}],"next_cursor":null})")}};
    CHECK(ids() == "ab");
    pages = {{base, http_answer(200, R"([{"sandbox_id":"a"}])",
                                "Link: </v1/sandboxes?p=2>; rel=\"next\"\r\n")},
             {base + "?p=2", http_answer(200, R"([{"sandbox_id":"b"}])",
                                         "Link: <?p=1>; rel=prev\r\nLink: <" + b.server.url() +
                                             "/x>; rel=next\r\n")},
             {"/x", http_answer(200, R"([{"sandbox_id":"c"}])")}};
    CHECK(ids() == "abc");
    // Many, and no word of whether that is all: asked for what is behind them.
    std::string ten = "[";
    for (char id = 'a'; id <= 'j'; ++id)
        ten += std::string(id == 'a' ? "" : ",") + R"({"sandbox_id":")" + id + "\"}";
    ten += "]";
    pages = {{base, http_answer(200, ten)},
             {base + "?offset=10", http_answer(200, R"([{"sandbox_id":"k"}])")}};
    CHECK(ids() == "abcdefghijk");
    pages = {{base, http_answer(200, ten)}, {base + "?offset=10", http_answer(200, ten)}};
    CHECK(ids() == "abcdefghij");
    for (const int status : {400, 404, 422}) {
        pages = {{base, http_answer(200, ten)}, {base + "?offset=10", http_answer(status, "{}")}};
        CHECK(ids() == "abcdefghij");
    }
    pages = {{base, http_answer(200, ten)}, {base + "?offset=10", http_answer(502, "")}};
    CHECK(ids() == "other");
    // In circles, elsewhere, lost on the way, or short of what it announced: not a listing.
    pages = {{base, http_answer(200, R"({"items":[],"next_page_token":"1"})")},
             {base + "?page_token=1", http_answer(200, R"({"items":[],"next_page_token":"1"})")}};
    CHECK(ids() == "bad");
    pages = {
        {base, http_answer(200, R"({"items":[],"next":"https://evil.example/v1/sandboxes?p=2"})")}};
    CHECK(ids() == "bad");
    pages = {{base, http_answer(200, R"({"items":[{"sandbox_id":"a"}],"total":2})")}};
    CHECK(ids() == "bad");
    pages = {{base, http_answer(200, R"({"items":[{"sandbox_id":"a"}],"next":"?p=2"})")}};
    CHECK(ids() == "other");
    // Without end.
    targets.clear();
    bench endless(answering([n = 0](const http_message&) mutable {
        return http_answer(200, R"({"data":[],"next":")" + std::to_string(++n) + "\"}");
    }));
    CHECK(endless.wait(endless.api->list()).error().kind == failure_kind::bad_answer);
}

TEST_CASE("cloud client: a large upload arrives whole, and a refusal before its end is heard") {
    std::string bytes(5 << 20, '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<char>(i * 31 / 7);
    bool same = false;
    bench b(answering([&](const http_message& request) {
        same = request.body() == bytes;
        return http_answer(200, "{}");
    }));
    CHECK(b.wait(b.api->put_content("sb_1", "/workspace/x", bytes)).has_value());
    CHECK(same);

    bench refusing([](peer& one) -> asio::awaitable<void> {
        co_await one.read_once();
        co_await one.write(http_answer(413, R"({"error":"too large"})", "Connection: close\r\n"));
    });
    const auto refused = refusing.wait(
        refusing.api->put_content("sb_1", "/workspace/x", std::string(50 << 20, 'x')));
    REQUIRE(!refused.has_value());
    CHECK(refused.error().kind == failure_kind::too_large);
    CHECK(refusing.api->idle_connections() == 0);
}

TEST_CASE("cloud client: calls at once each get their own answer") {
    bench b(answering([](const http_message& request) {
        const std::string target = request.target();
        return http_answer(200,
                           R"({"sandbox_id":")" + target.substr(target.rfind('/') + 1) + "\"}");
    }));
    int right = 0;
    int done = 0;
    for (int i = 0; i < 100; ++i) {
        const std::string id = "sb_" + std::to_string(i);
        asio::co_spawn(b.io, b.api->get(id),
                       [&, id](std::exception_ptr, result<sandbox_info> said) {
                           right += said.has_value() && said->id == id ? 1 : 0;
                           ++done;
                       });
    }
    run_until(b.io, [&done] { return done == 100; });
    CHECK(right == 100);
    CHECK(b.api->idle_connections() <= 16);
}
