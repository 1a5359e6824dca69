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
