// Where the pieces of a command's stdin go, and in which order.
#include "cloud_server.hpp"
#include "exec/input.hpp"
#include "temp_dir.hpp"

#include <boost/asio/detached.hpp>

using namespace sandboxd;
using namespace sandboxd::cloud::test;
using sandboxd::test::temp_dir;

namespace {

struct bench {
    bench()
        : account(io.get_executor(), "http://127.0.0.1:1", secret("k"), directory.path()),
          keeper(io.get_executor(), account),
          input(std::make_shared<exec::command_input>(exec::command_input::parts{
              io.get_executor(), account, keeper, "e", directory.path(), std::nullopt, "", true})) {
    }
    // What is answered comes into `answers`, as "N" bytes accepted or what is wrong.
    void give(std::uint64_t offset, std::string bytes, bool eof = false) {
        asio::co_spawn(io, input->take({false, offset, std::move(bytes), eof}),
                       [this](std::exception_ptr problem, exec::input_answer answer) {
                           answers.push_back(problem ? "refused" : std::to_string(answer.accepted));
                       });
    }

    temp_dir directory;
    asio::io_context io;
    sandbox::account account;
    exec::shim_keeper keeper;
    std::shared_ptr<exec::command_input> input;
    std::vector<std::string> answers;
};

using list = std::vector<std::string>;

// A command that is handed one large piece by a platform that answers in turn with those states of
// its stdin; what is asked of it is noted: "put", or the word that tells the call.
struct handed_over {
    explicit handed_over(list in_turn)
        : states(std::move(in_turn)), server(io, [this](peer& one) { return serve(one); }),
          account(io.get_executor(), server.url(), secret("k"), directory.path()),
          keeper(io.get_executor(), account),
          input(std::make_shared<exec::command_input>(exec::command_input::parts{
              io.get_executor(), account, keeper, "e", directory.path(), std::nullopt, "", true})) {
        input->hand_over("sb_1", 0);
    }
    asio::awaitable<void> serve(peer& one) {
        while (const auto request = co_await one.request()) {
            if (request->method() == http::verb::put) {
                calls.emplace_back("put");
                co_await one.write(http_answer(200, "{}"));
                continue;
            }
            const std::string& body = request->body();
            const bool removes = body.find("\"rm\"") != std::string::npos;
            calls.emplace_back(removes                                        ? "rm"
                               : body.find("\"--file\"") != std::string::npos ? "file"
                                                                              : "ask");
            std::string said;
            if (!removes) {
                REQUIRE(next < states.size());
                said = chunk("{\"stdout\":\"deepinfra-shim/1 stdin build=x arch=x86_64 uid=0 "
                             "boot=b\\n" +
                             states[next] + "\\n\"}\n");
                if (++next == ends_at) input->end();
            }
            co_await one.write(stream_header + said + chunk("{\"returncode\":0}\n") + last_chunk);
        }
    }
    void take_all() { await(io, input->take({false, 0, std::string(1U << 20, 'x'), false})); }

    temp_dir directory;
    asio::io_context io;
    list states;
    std::size_t next = 0;
    std::size_t ends_at = 0; // the command, behind so many answers
    list calls;
    scripted_server server;
    sandbox::account account;
    exec::shim_keeper keeper;
    std::shared_ptr<exec::command_input> input;
};

const std::string busy = "stdin state=busy accepted=0 written=0";
const std::string taken = "stdin state=open accepted=1048576 written=0";

} // namespace

TEST_CASE("exec input: a piece that comes as it is decided where they go is behind those before") {
    bench one;
    one.give(0, "ab");
    one.give(2, "cd");
    one.io.poll();
    CHECK(one.answers.empty());
    asio::co_spawn(one.io, one.input->collect_stdin(), asio::detached);
    one.give(4, "ef", true);
    one.io.restart();
    one.io.poll();
    CHECK(one.answers == list{"2", "4", "6"});
    REQUIRE(one.input->files().size() == 1);
    CHECK(one.input->files().front().size == 6);
}

TEST_CASE("exec input: a piece that is refused holds up none of those behind it") {
    bench one;
    one.give(7, "x"); // a hole
    one.give(0, "ab");
    one.give(2, "", true);
    one.io.poll();
    asio::co_spawn(one.io, one.input->collect_stdin(), asio::detached);
    one.io.restart();
    one.io.poll();
    CHECK(one.answers == list{"refused", "2", "2"});
}

TEST_CASE("exec input: a large piece is put into the sandbox once, however often it is offered") {
    handed_over one({busy, busy, "stdin state=unanswered accepted=0 written=0", taken});
    one.take_all();
    CHECK(one.calls == list{"put", "file", "ask", "file", "file"});
}

TEST_CASE("exec input: what cannot be found in the sandbox is put there again") {
    handed_over one({"error name=stdin_failed errno=2 at=open started=no", taken});
    one.take_all();
    CHECK(one.calls == list{"put", "file", "put", "file"});
}

TEST_CASE("exec input: a large piece that nobody has taken does not stay in the sandbox") {
    handed_over one({busy, busy});
    one.ends_at = 2;
    one.take_all();
    CHECK(one.calls == list{"put", "file", "ask", "rm"});
}
