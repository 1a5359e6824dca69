// What is made of a command's end: the exit code, and what is said about it.
#include "cli/exec_ending.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::cli;

namespace {

json::object exit_of(const char* reason, json::value returncode, json::object more = {}) {
    json::object exit{{"exec_id", "x"},     {"returncode", std::move(returncode)},
                      {"reason", reason},   {"started", "yes"},
                      {"recreated", false}, {"generation", 2},
                      {"output_bytes", 10}, {"dropped_bytes", 0}};
    for (auto& field : more)
        exit[field.key()] = field.value();
    return exit;
}

} // namespace

TEST_CASE("ending: the command's own code, and nothing is said") {
    for (const auto& [returncode, code] :
         {std::pair{0, 0}, {1, 1}, {124, 124}, {255, 255}, {-9, 137}, {-15, 143}, {256, 255}}) {
        const exec_ending end = read_ending(exit_of("exited", returncode), 0);
        CHECK(end.code == code);
        CHECK(end.remarks.empty());
        CHECK(!end.trouble);
    }
}

TEST_CASE("ending: out of time, cancelled") {
    CHECK(read_ending(exit_of("timed_out", 124), 0).code == 124);
    CHECK(read_ending(exit_of("timed_out", 124), 0).remarks ==
          std::vector<std::string>{"the command timed out"});
    CHECK(read_ending(exit_of("timed_out", 124, {{"message", "after 2 s"}}), 0).remarks ==
          std::vector<std::string>{"after 2 s"});
    CHECK(read_ending(exit_of("cancelled", 130), 0).code == 130);
    CHECK(read_ending(exit_of("cancelled", 130), 0).remarks.empty());
}

TEST_CASE("ending: what did not go well says whether it ran") {
    const auto text = [](const char* started) {
        const exec_ending end =
            read_ending(exit_of("failed", nullptr,
                                {{"started", started},
                                 {"message", "no room"},
                                 {"error", {{"name", "cap_reached"}, {"hint", "stop one"}}}}),
                        0);
        CHECK(end.code == 125);
        REQUIRE(end.trouble);
        CHECK(end.trouble->code() == exit_code::failed);
        CHECK(end.trouble->hint() == "stop one");
        CHECK(end.trouble->name() == "cap_reached");
        return std::string(end.trouble->what());
    };
    CHECK(text("no") == "no room (it has not run)");
    CHECK(read_ending(exit_of("failed", nullptr,
                              {{"started", "no"}, {"message", "no room; it has not run"}}),
                      0)
              .trouble->what() == std::string("no room; it has not run"));
    CHECK(text("yes") == "no room (it ran; how it ended is not known)");
    CHECK(text("unknown") == "no room (whether it ran is not known)");
    CHECK(read_ending({}, 0).code == 125);
}

TEST_CASE("ending: what is missing and a new sandbox are told") {
    const exec_ending end = read_ending(
        exit_of("exited", 0, {{"recreated", true}, {"dropped_bytes", 7}, {"message", "m"}}), 3);
    REQUIRE(end.remarks.size() == 3);
    CHECK(end.remarks[0].find("started anew") != std::string::npos);
    CHECK(end.remarks[1] == "7 bytes of its output are missing");
    CHECK(end.remarks[2] == "m");
    CHECK(read_ending(exit_of("exited", 0, {{"dropped_bytes", 7}}), 9).remarks ==
          std::vector<std::string>{"9 bytes of its output are missing"});
    const auto first =
        read_ending(exit_of("exited", 0, {{"recreated", true}, {"generation", 1}}), 0);
    CHECK(first.remarks.empty()); // the first one is nothing to speak of
    const json::object created{{"recreated", true}, {"created", true}, {"generation", 3}};
    const auto removed = read_ending(exit_of("exited", 0, created), 0);
    REQUIRE(removed.remarks.size() == 1);
    CHECK(removed.remarks[0].find("not even in /workspace") != std::string::npos);
}

TEST_CASE("ending: a command that no daemon has got to can be run by the next one") {
    const json::object error{{"name", "shutting_down"}};
    CHECK(was_not_sent(exit_of("failed", nullptr, {{"started", "no"}, {"error", error}})));
    CHECK(!was_not_sent(exit_of("failed", nullptr, {{"started", "unknown"}, {"error", error}})));
    CHECK(!was_not_sent(
        exit_of("failed", nullptr, {{"started", "no"}, {"error", {{"name", "cap_reached"}}}})));
    CHECK(!was_not_sent(exit_of("exited", 0)));
}
