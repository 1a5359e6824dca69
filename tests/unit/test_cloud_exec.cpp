// The exec stream against a server that does what the test says: what comes when, cuts, the
// connection's return to the pool, and cancellation at every step of every call.
#include "cloud_server.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

using namespace sandboxd;
using namespace sandboxd::cloud;
using namespace sandboxd::cloud::test;

namespace {

// An event that a script or a test waits for.
class gate {
public:
    explicit gate(asio::io_context& io) : timer_(io, asio::steady_timer::time_point::max()) {}
    void open() {
        open_ = true;
        timer_.cancel();
    }
    asio::awaitable<void> pass() {
        while (!open_)
            co_await timer_.async_wait(as_result);
    }

private:
    asio::steady_timer timer_;
    bool open_ = false;
};

struct bench : client_bench {
    using client_bench::client_bench;
    std::unique_ptr<exec_stream> start() {
        auto stream = wait(api->exec("sb_1", {"echo", "hi"}, std::chrono::seconds(60)));
        REQUIRE(stream.has_value());
        return std::move(*stream);
    }
};

struct told {
    std::string out;
    std::string err;
    exec_event end;
};

told hear(asio::io_context& io, exec_stream& stream) {
    told all;
    while (true) {
        exec_event event = await(io, stream.next());
        if (const auto* output = std::get_if<exec_output>(&event)) {
            (output->is_stderr ? all.err : all.out) += output->text;
        } else if (!std::holds_alternative<exec_heartbeat>(event)) {
            all.end = std::move(event);
            return all;
        }
    }
}

int code(const exec_event& event) {
    const auto* exited = std::get_if<exec_exited>(&event);
    REQUIRE(exited != nullptr);
    return exited->returncode;
}

const std::string out_line = "{\"stdout\":\"out\\n\"}\n";
const std::string end_line = "{\"returncode\":3}\n";

} // namespace

TEST_CASE("cloud exec: one write carries header and body, and the events come in order") {
    std::vector<std::string> reads;
    bench b([&reads](peer& one) -> asio::awaitable<void> {
        while (true) {
            reads.push_back(co_await one.read_once());
            if (reads.back().empty()) break;
            co_await one.write(stream_header + chunk(out_line + "{\"stderr\":\"e") +
                               chunk("rr\"}\n{}\n") + chunk(end_line) + last_chunk);
        }
    });
    for (int i = 0; i < 3; ++i) {
        const auto stream = b.start();
        const auto all = hear(b.io, *stream);
        CHECK(all.out == "out\n");
        CHECK(all.err == "err");
        CHECK(code(all.end) == 3);
        CHECK(b.api->idle_connections() == 1); // at once, since all has come
    }
    CHECK(b.server.connections == 1);
    CHECK(b.api->requests() == 3);
    REQUIRE(reads.size() == 3);
    CHECK(reads[0].starts_with("POST /v1/sandboxes/sb_1/exec HTTP/1.1\r\n"));
    CHECK(reads[0].ends_with("\r\n\r\n{\"command\":[\"echo\",\"hi\"],\"timeout_seconds\":60}"));
}

TEST_CASE("cloud exec: the end is told at once; the connection comes back when the body is over") {
    asio::io_context& io = *std::make_unique<asio::io_context>().release();
    const std::unique_ptr<asio::io_context> owner(&io);
    gate body_may_end(io);
    scripted_server server(io, [&body_may_end](peer& one) -> asio::awaitable<void> {
        while (co_await one.request()) {
            co_await one.write(stream_header + chunk(out_line + end_line));
            co_await body_may_end.pass();
            co_await one.write(last_chunk);
        }
    });
    client api(io.get_executor(), options_for(server.url()));
    api.set_key(secret("k"));
    auto stream = await(io, api.exec("sb_1", {"true"}, std::chrono::seconds(1)));
    REQUIRE(stream.has_value());
    CHECK(code(hear(io, **stream).end) == 3);
    stream->reset(); // the stream's owner need not wait
    CHECK(api.idle_connections() == 0);
    body_may_end.open();
    run_until(io, [&api] { return api.idle_connections() == 1; });
    CHECK(await(io, api.exec("sb_1", {"true"}, std::chrono::seconds(1))).has_value());
    CHECK(server.connections == 1);
}

TEST_CASE("cloud exec: a body that never ends, or goes on too long, costs the connection") {
    bench flood([](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        bool alive = co_await one.write(stream_header + chunk(end_line));
        while (alive)
            alive = co_await one.write(chunk(std::string(8192, '\n')));
    });
    CHECK(code(hear(flood.io, *flood.start()).end) == 3);
    run_until(flood.io, [&flood] { return flood.server.ended == 1; });
    CHECK(flood.api->idle_connections() == 0);

    bench silent([](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        co_await one.write(stream_header + chunk(end_line));
        co_await one.request();
    });
    CHECK(code(hear(silent.io, *silent.start()).end) == 3);
    silent.api.reset(); // a client that goes closes also what is still being read to its end
    run_until(silent.io, [&silent] { return silent.server.ended == 1; });
}

TEST_CASE("cloud exec: other framings of the same stream") {
    const std::string lines = out_line + end_line;
    for (const bool close : {false, true}) {
        bench b([&lines, close](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            if (close) {
                co_await one.write("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n" +
                                   lines);
            } else {
                co_await one.write(http_answer(200, lines));
                co_await one.request();
            }
        });
        const auto all = hear(b.io, *b.start());
        CHECK(all.out == "out\n");
        CHECK(code(all.end) == 3);
        CHECK(b.api->idle_connections() == (close ? 0 : 1));
    }
}

TEST_CASE("cloud exec: cut at every byte, what came stands and the end is never made up") {
    const std::string body = chunk(out_line) + chunk("{\"stdout\":\"x\xe2\x82") +
                             chunk("\xac\"}\n" + end_line) + last_chunk;
    const std::size_t whole =
        body.size() - last_chunk.size() - 2 - 1; // up to the terminal line's brace
    for (std::size_t i = 0; i < body.size(); ++i) {
        const std::string sent = stream_header + body.substr(0, i);
        bench b([&sent, i](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            co_await one.write(sent);
            if (i % 3 == 0) one.close(); // FIN; else the script's end is one too
        });
        const auto all = hear(b.io, *b.start());
        REQUIRE(std::string("out\nx\xe2\x82\xac").starts_with(all.out));
        if (i >= whole) {
            REQUIRE(code(all.end) == 3);
        } else {
            const auto* cut = std::get_if<exec_cut>(&all.end);
            REQUIRE(cut != nullptr);
            CHECK(cut->why.kind == failure_kind::interrupted);
            CHECK(cut->why.effect_unknown());
        }
        run_until(b.io, [&b] { return b.server.ended == 1; });
        CHECK(b.api->idle_connections() == 0);
        CHECK(b.server.connections == 1);
    }
}

TEST_CASE("cloud exec: a reset, rubbish and bad framing end as cut") {
    for (const std::string& sent :
         {chunk(out_line), chunk(out_line + "rubbish\n"), chunk(out_line) + "zz\r\n"}) {
        bench b([&sent](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            co_await one.write(stream_header + sent);
            co_await one.read_once();
        });
        const auto stream = b.start();
        CHECK(std::get<exec_output>(await(b.io, stream->next())).text == "out\n");
        if (sent == chunk(out_line)) {
            asio::cancellation_signal stop;
            bool cancelled = false;
            asio::co_spawn(
                b.io, stream->next(),
                asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr e, exec_event) {
                    cancelled = e != nullptr;
                }));
            b.io.restart();
            b.io.poll();
            stop.emit(asio::cancellation_type::terminal);
            run_until(b.io, [&cancelled] { return cancelled; });
        } else {
            const auto event = await(b.io, stream->next());
            const auto* cut = std::get_if<exec_cut>(&event);
            REQUIRE(cut != nullptr);
            CHECK(cut->why.kind == failure_kind::bad_answer);
        }
        CHECK(b.api->idle_connections() == 0);
    }
    bench b([](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        co_await one.write(stream_header + chunk(out_line));
        one.reset();
    });
    const auto all = hear(b.io, *b.start());
    CHECK(std::get<exec_cut>(all.end).why.kind == failure_kind::interrupted);
}

TEST_CASE("cloud exec: refusals are failures, and the connection lives on") {
    std::string answer;
    bench b(answering([&answer](const http_message&) { return answer; }));
    const auto refused = [&](const std::string& text) {
        answer = text;
        return b.wait(b.api->exec("sb_1", {"true"}, std::chrono::seconds(1))).error();
    };
    CHECK(refused(http_answer(409, R"({"detail":"not running"})")).kind == failure_kind::conflict);
    CHECK(refused(http_answer(404, R"({"detail":"no such sandbox"})")).kind ==
          failure_kind::not_found);
    CHECK(refused(http_answer(404, "<html>")).kind == failure_kind::not_found_unproven);
    CHECK(refused(http_answer(502, "<html>")).effect_unknown());
    CHECK(refused(http_answer(202, "{}")).kind == failure_kind::bad_answer);
    CHECK(b.server.connections == 1);
    CHECK(refused(http_answer(200, "<html>", "Content-Type: text/html; charset=utf-8\r\n")).kind ==
          failure_kind::bad_answer);
}

TEST_CASE("cloud exec: an error line is the platform's word, without the key") {
    bench b(answering([](const http_message&) {
        return http_answer(200, out_line + "{\"error\":\"killed by k-canary\"}\n");
    }));
    const auto all = hear(b.io, *b.start());
    CHECK(all.out == "out\n");
    CHECK(std::get<exec_refused>(all.end).message == "killed by ***");
    CHECK(b.api->idle_connections() == 1);
}

TEST_CASE("cloud exec: a stream that is let go drops its connection") {
    bench b([](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        co_await one.write(stream_header + chunk(out_line));
        co_await one.request();
    });
    auto stream = b.start();
    CHECK(std::get<exec_output>(await(b.io, stream->next())).text == "out\n");
    stream.reset();
    run_until(b.io, [&b] { return b.server.ended == 1; });
    CHECK(b.api->idle_connections() == 0);
}

TEST_CASE("cloud exec: who does not read slows the writer down") {
    std::size_t written = 0;
    const std::string line = chunk("{\"stdout\":\"" + std::string(60'000, 'x') + "\"}\n");
    bench b([&written, &line](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        co_await one.write(stream_header);
        bool alive = true;
        while (alive) {
            alive = co_await one.write(line);
            written += line.size();
        }
    });
    auto stream = b.start();
    b.io.restart();
    while (b.io.poll() > 0) {
    }
    CHECK(written < (32 << 20)); // what the kernel's buffers take
    std::size_t before = written;
    for (std::size_t taken = 0; taken < before + (4 << 20);) {
        taken += std::get<exec_output>(await(b.io, stream->next())).text.size();
    }
    CHECK(written > before);
}

TEST_CASE("cloud exec: cancelled at every step, a call throws, keeps nothing, and the next one is "
          "right") {
    struct step {
        std::string name;
        std::function<asio::awaitable<bool>(client&)> call; // whether it went well
        int most_requests;                                  // of one call
    };
    const std::vector<step> steps{
        {"get",
         [](client& api) -> asio::awaitable<bool> {
             const auto said = co_await api.get("sb_1");
             co_return said.has_value();
         },
         1},
        {"list",
         [](client& api) -> asio::awaitable<bool> {
             const auto said = co_await api.list();
             co_return said.has_value() && said->size() == 2;
         },
         2},
        {"create",
         [](client& api) -> asio::awaitable<bool> {
             create_request request;
             const auto said = co_await api.create(request);
             co_return said.has_value();
         },
         1},
        {"put",
         [](client& api) -> asio::awaitable<bool> {
             const auto said =
                 co_await api.put_content("sb_1", "/workspace/x", std::string(3 << 20, 'x'));
             co_return said.has_value();
         },
         1},
        {"exec",
         [](client& api) -> asio::awaitable<bool> {
             std::vector<std::string> argv{"true"};
             auto stream = co_await api.exec("sb_1", std::move(argv), std::chrono::seconds(1));
             if (!stream) co_return false;
             std::string out;
             while (true) {
                 const exec_event event = co_await (*stream)->next();
                 if (const auto* output = std::get_if<exec_output>(&event)) out += output->text;
                 if (const auto* exited = std::get_if<exec_exited>(&event)) {
                     co_return exited->returncode == 3 && out == "out\n";
                 }
                 if (std::holds_alternative<exec_cut>(event)) co_return false;
             }
         },
         1},
    };
    const auto script = [](peer& one) -> asio::awaitable<void> {
        while (const auto request = co_await one.request()) {
            const std::string target = request->target();
            if (target.ends_with("/exec")) {
                co_await one.write(stream_header);
                co_await one.write(chunk(out_line));
                co_await one.write(chunk(end_line));
                co_await one.write(last_chunk);
            } else if (target == "/v1/sandboxes" && request->method() == http::verb::get) {
                co_await one.write(
                    http_answer(200, R"([{"sandbox_id":"a"}])", "Link: <?p=2>; rel=next\r\n"));
            } else if (target == "/v1/sandboxes?p=2") {
                co_await one.write(http_answer(200, R"([{"sandbox_id":"b"}])"));
            } else {
                const std::string whole = http_answer(200, sandbox_json);
                co_await one.write(whole.substr(0, 20));
                co_await one.write(whole.substr(20, 40));
                co_await one.write(whole.substr(60));
            }
        }
    };
    for (const std::string& host : {std::string("127.0.0.1"), std::string("localhost")}) {
        for (const step& each : steps) {
            for (const bool warm : {false, true}) {
                CAPTURE(host);
                CAPTURE(each.name);
                CAPTURE(warm);
                int cancelled_runs = 0;
                bool finished = false;
                // Cancelled after 0, 1, 2, ... turns of the loop, until it is done before it can
                // be; at last in wider strides, for an upload takes many turns that are alike.
                for (int turns = 0; !finished; turns += 1 + turns / 40) {
                    CAPTURE(turns);
                    REQUIRE(turns < 5000);
                    asio::io_context io;
                    scripted_server server(io, script);
                    client api(io.get_executor(), options_for(server.url(host)));
                    api.set_key(secret("k"));
                    if (warm) REQUIRE(await(io, each.call(api)));
                    const auto requests_before = api.requests();

                    asio::cancellation_signal stop;
                    bool done = false;
                    bool good = false;
                    std::exception_ptr error;
                    asio::co_spawn(io, each.call(api),
                                   asio::bind_cancellation_slot(
                                       stop.slot(), [&](std::exception_ptr e, bool went_well) {
                                           done = true;
                                           good = went_well;
                                           error = e;
                                       }));
                    io.restart();
                    for (int i = 0; i < turns && !done; ++i) {
                        REQUIRE(io.run_one_for(std::chrono::seconds(10)) == 1);
                    }
                    finished = done;
                    if (!done) {
                        stop.emit(asio::cancellation_type::terminal);
                        // At once: nothing of it waits for the network or a thread.
                        io.restart();
                        while (!done && io.poll_one() == 1) {
                        }
                        REQUIRE(done);
                        ++cancelled_runs;
                    }
                    if (error) {
                        try {
                            std::rethrow_exception(error);
                        } catch (const boost::system::system_error& aborted) {
                            CHECK(aborted.code() == asio::error::operation_aborted);
                        }
                    } else {
                        CHECK(good); // it was done before the cancellation took hold
                    }
                    CHECK(api.requests() - requests_before <=
                          static_cast<unsigned>(each.most_requests));
                    // No state is left behind: the next call is answered rightly.
                    REQUIRE(await(io, each.call(api)));
                }
                CHECK(cancelled_runs > 5);
            }
        }
    }
}

TEST_CASE("cloud exec: a cancelled next() may be called again and nothing is lost") {
    asio::io_context io;
    gate more(io);
    scripted_server server(io, [&more](peer& one) -> asio::awaitable<void> {
        co_await one.request();
        co_await one.write(stream_header + chunk("{\"stdout\":\"ha"));
        co_await more.pass();
        co_await one.write(chunk("lf\"}\n" + end_line) + last_chunk);
        co_await one.request();
    });
    client api(io.get_executor(), options_for(server.url()));
    api.set_key(secret("k"));
    auto stream = await(io, api.exec("sb_1", {"true"}, std::chrono::seconds(1)));
    REQUIRE(stream.has_value());
    for (int i = 0; i < 3; ++i) {
        asio::cancellation_signal stop;
        bool threw = false;
        bool done = false;
        asio::co_spawn(
            io, (*stream)->next(),
            asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr e, exec_event) {
                threw = e != nullptr;
                done = true;
            }));
        io.restart();
        io.poll();
        CHECK(!done);
        stop.emit(asio::cancellation_type::terminal);
        run_until(io, [&done] { return done; });
        CHECK(threw);
    }
    more.open();
    const auto all = hear(io, **stream);
    CHECK(all.out == "half");
    CHECK(code(all.end) == 3);
    CHECK(api.idle_connections() == 1);
}
