// The line to a runner in the sandbox against a platform that does what the test says: when a
// connection is given up, and when the sandbox is told what is safe.
#include "cloud_server.hpp"
#include "exec/shim_line.hpp"
#include "shim_bench.hpp"
#include "temp_dir.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

using namespace sandboxd;
using namespace sandboxd::cloud::test;
using sandboxd::test::temp_dir;

namespace {

constexpr std::size_t spool = 1U << 20;

// Each POST's shim verb is noted, and answered by a script of its own.
struct bench {
    using answer = std::function<asio::awaitable<void>(peer&)>;

    explicit bench(std::vector<answer> in_turn,
                   std::chrono::milliseconds silence = std::chrono::milliseconds(50))
        : answers(std::move(in_turn)), server(io, [this](peer& one) { return serve(one); }),
          account(io.get_executor(), server.url(), secret("k-canary"), directory.path()),
          keeper(io.get_executor(), account) {
        exec::shim_line::plan plan;
        plan.sandbox_id = "sb_1";
        plan.exec_id = "e";
        plan.run.argv = {keeper.path(), "run", "e", "--", "true"};
        plan.installed = true;
        plan.spool = spool;
        plan.silence = silence;
        line = std::make_shared<exec::shim_line>(io.get_executor(), account, keeper, plan);
    }

    asio::awaitable<void> serve(peer& one) {
        while (const auto request = co_await one.request()) {
            const std::string& body = request->body();
            for (const char* verb : {"\"run\"", "\"follow\"", "\"ack\""}) {
                if (body.find(verb) != std::string::npos) verbs.emplace_back(verb);
            }
            const std::size_t n = verbs.size() - 1;
            REQUIRE(n < answers.size());
            co_await answers[n](one);
        }
    }

    // What the line says next, as text.
    std::string next() {
        const exec::line_event event = await(io, line->next());
        if (const auto* output = std::get_if<exec::line_output>(&event)) return output->bytes;
        const auto* end = std::get_if<core::exec_exit>(&event);
        if (end != nullptr) code = end->returncode;
        return end == nullptr ? "?" : std::string(core::to_string(end->reason));
    }
    void open() {
        const exec::line_opened opened = await(io, line->open());
        REQUIRE(std::holds_alternative<exec::line_open>(opened));
    }

    temp_dir directory;
    asio::io_context io;
    std::vector<answer> answers;
    std::vector<std::string> verbs;
    std::optional<int> code; // of the end
    scripted_server server;
    sandbox::account account;
    exec::shim_keeper keeper;
    std::shared_ptr<exec::shim_line> line;
};

std::string stdout_line(std::string_view text) {
    std::string out = "{\"stdout\":\"";
    for (const char c : text) {
        out += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    return chunk(out + "\"}\n");
}

// A whole stream, or the beginning of one.
bench::answer says(std::string text, bool ends = true) {
    return [text = std::move(text), ends](peer& one) -> asio::awaitable<void> {
        std::string all = stream_header + stdout_line(text);
        if (ends) all += chunk("{\"returncode\":0}\n") + last_chunk;
        co_await one.write(std::move(all));
        if (!ends) co_await one.read_once(); // until it is given up
    };
}

const std::string end_frame =
    "exit reason=exited started=yes code=0 signal=- pos=2 out=2 err=0 dropped=0 background=0 "
    "elapsed_ms=1 output=kept errno=- at=-\n";

} // namespace

TEST_CASE("shim line: a connection without a sign of life is given up and the command followed") {
    bench b({says(test::hello(0, 0, "new") + "o 0 0 r 2\nhi\n", false),
             says(test::hello(2, 0) + end_frame)});
    b.open();
    CHECK(b.next() == "hi");
    CHECK(b.next() == "exited");
    CHECK(b.verbs == std::vector<std::string>{"\"run\"", "\"follow\""});
}

// Whatever it was doing when it fell silent: nothing is missing after that, nothing comes twice.
TEST_CASE("shim line: a stream that stalls comes out whole, once, with its own end") {
    const std::string begun = test::hello(0, 0, "new") + "o 0 0 r 2\nhi\n";
    const std::string ended =
        "exit reason=exited started=yes code=3 signal=- pos=9 out=9 err=0 dropped=0 background=0 "
        "elapsed_ms=1 output=kept errno=- at=-\n";
    for (const std::string& next :
         {std::string(), std::string("o 2 2 r 7\nthe"), std::string("o 2 2 r 7\nthe end\n"),
          std::string("o 2 2 r 7\nthe end\nexit reason=exi")}) {
        CAPTURE(next);
        const bool all = next.find("end") != std::string::npos;
        const std::string again = all ? test::hello(9, 0, "attached")
                                      : test::hello(2, 0, "attached") + "o 2 2 r 7\nthe end\n";
        bench b({says(begun + next, false), says(again + ended)});
        b.open();
        std::string output;
        std::string last = b.next();
        while (last != "exited" && output.size() < 100) {
            output += last;
            last = b.next();
        }
        CHECK(output == "hithe end");
        CHECK(b.code == 3);
        CHECK(b.verbs == std::vector<std::string>{"\"run\"", "\"follow\""});
    }
}

TEST_CASE("shim line: signs of life keep it") {
    bench b({[](peer& one) -> asio::awaitable<void> {
        co_await one.write(stream_header + stdout_line(test::hello(0, 0, "new")));
        asio::steady_timer pause(one.executor());
        for (int n = 0; n < 10; ++n) {
            pause.expires_after(std::chrono::milliseconds(20));
            co_await pause.async_wait(as_result);
            co_await one.write(stdout_line("alive pos=0\n"));
        }
        co_await one.write(stdout_line("o 0 0 r 2\nhi\n" + end_frame) +
                           chunk("{\"returncode\":0}\n") + last_chunk);
    }});
    b.open();
    CHECK(b.next() == "hi");
    CHECK(b.next() == "exited");
    CHECK(b.verbs == std::vector<std::string>{"\"run\""});
}

TEST_CASE("shim line: a full spool is told at once what is safe, and else nothing is") {
    const std::string acked = "deepinfra-shim/1 ack build=x arch=x86_64 uid=0 boot=b\n"
                              "acked id=e state=running\n";
    for (const bool full : {false, true}) {
        CAPTURE(full);
        bench b({says(test::hello(0, 0, "new") + "o 0 0 r 2\nhi\n" +
                          (full ? "full pos=2 start=0 end=2\n" : ""),
                      false),
                 says(acked)},
                std::chrono::seconds(60));
        b.open();
        CHECK(b.next() == "hi");
        asio::cancellation_signal stop;
        bool ended = false;
        asio::co_spawn(b.io, b.line->next(),
                       asio::bind_cancellation_slot(stop.slot(), [&](auto&&...) { ended = true; }));
        b.io.restart();
        b.io.run_for(std::chrono::milliseconds(20));
        CHECK(b.verbs.size() == 1);
        b.line->acknowledged(2, false); // far from three quarters of the spool
        b.io.restart();
        b.io.run_for(std::chrono::milliseconds(50));
        CHECK(b.verbs.size() == (full ? 2U : 1U));
        stop.emit(asio::cancellation_type::terminal); // it uses the line
        while (!ended) {
            b.io.restart();
            b.io.run_one();
        }
    }
}
