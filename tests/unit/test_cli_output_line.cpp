#include "cli/output_line.hpp"

#include "rpc/message.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>

#include <random>
#include <string>

using namespace sandboxd;
namespace json = boost::json;

namespace {

std::string output_line(std::string_view exec_id, std::string_view text) {
    std::string line;
    rpc::append_notification(
        line, "exec.output",
        {{"exec_id", exec_id}, {"stream", "stdout"}, {"offset", 5}, {"pos", 7}}, "data", text);
    line.pop_back();
    return line;
}

bool is_read(std::string_view line) {
    return cli::read_output_line(line).has_value();
}

} // namespace

TEST_CASE("output line: what the daemon writes is read, as a general parser reads it") {
    for (const std::string text :
         {"", "plain", "a\nb\t\"c\"\\d\x01\x1f", "über \xe2\x82\xac", "}}", R"(","data":"x"}})"}) {
        CAPTURE(text);
        const std::string line = output_line("e", text);
        const auto message = cli::read_output_line(line);
        REQUIRE(message);
        CHECK(json::value(*message) == json::parse(line));
        CHECK(message->at("params").at("data") == json::value(text));
    }
}

TEST_CASE(
    "output line: another message, and one in another spelling, is left to a general parser") {
    CHECK_FALSE(
        is_read(R"({"jsonrpc":"2.0","method":"exec.exit","params":{"exec_id":"e","data":"x"}})"));
    CHECK_FALSE(
        is_read(R"({"jsonrpc":"2.0","method":"exec.output","params":{"a":1,"data_b64":"eA=="}})"));
    CHECK_FALSE(
        is_read(R"({"jsonrpc":"2.0","method":"exec.output","params":{"a":1,"data":"x"}} )"));
    CHECK_FALSE(
        is_read(R"({"jsonrpc":"2.0","method":"exec.output","params":{"a":1,"data":"x","b":2}})"));
    CHECK_FALSE(
        is_read(R"({"jsonrpc":"2.0","method":"exec.output","params":{"a":{"b":1,"data":"x"}}})"));
    CHECK_FALSE(
        is_read(R"({"jsonrpc":"2.0","method":"exec.output","params":{"data":1,"data":"x"}})"));
    CHECK_FALSE(is_read(
        R"({"jsonrpc":"2.0","method":"exec.output","params":{"a":1,"data":"\ud83d\ude00"}})"));
}

TEST_CASE("output line: nothing is read that a general parser would refuse or read otherwise") {
    std::mt19937 random(3);
    int read = 0;
    for (int round = 0; round < 30'000; ++round) {
        std::string text;
        for (std::size_t n = random() % 12; n > 0; --n) {
            text += "ab\"\\\n{}:,\x02"[random() % 10];
        }
        std::string line = output_line(random() % 2 ? "e" : R"(,"data":")", text);
        for (std::size_t n = random() % 3; n > 0; --n) {
            const std::size_t at = random() % line.size();
            if (random() % 2 == 0) {
                line[at] = "\"\\{}:,d\xff\n"[random() % 9];
            } else {
                line.erase(at, random() % 4);
            }
        }
        if (const auto message = cli::read_output_line(line)) {
            ++read;
            CAPTURE(line);
            boost::system::error_code error;
            const json::value parsed = json::parse(line, error);
            REQUIRE_FALSE(error.failed());
            CHECK(parsed == json::value(*message));
        }
    }
    CHECK(read > 5'000);
}
