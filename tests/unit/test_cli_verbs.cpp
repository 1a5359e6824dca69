// The command line itself: parsing, help, and which mistake is told how.
#include "cli/sandbox_verb.hpp"
#include "cli/verb.hpp"

#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>

using namespace sandboxd::cli;

namespace {

const verb* const all[] = {&cp_verb,        &status_verb, &list_verb,  &exec_verb,
                           &attach_verb,    &cancel_verb, &start_verb, &stop_verb,
                           &terminate_verb, &plans_verb,  &wait_verb};

template <class F>
std::string error_of(F&& act) {
    try {
        act();
        return {};
    } catch (const failure& error) {
        return std::string(error.what()) + " | " + error.hint();
    }
}

std::string chosen(const std::vector<std::string>& given) {
    return json::serialize(chosen_sandbox(parse(stop_verb, given), "stop"));
}

} // namespace

TEST_CASE("exec: options before the dashes, anything after them") {
    const arguments given = parse(exec_verb, {"--task", "t", "-e", "A=1", "--env=B=2=3", "-i", "--",
                                              "ls", "--help", "--", "-x"});
    CHECK(given.value("task") == "t");
    CHECK(given.values("env") == std::vector<std::string>{"A=1", "B=2=3"});
    CHECK(given.has("stdin"));
    CHECK(!given.has("help"));
    CHECK(given.command() == std::vector<std::string>{"ls", "--help", "--", "-x"});
}

TEST_CASE("exec: an empty argument stays an argument") {
    CHECK(parse(exec_verb, {"--", "printf", ""}).command() ==
          std::vector<std::string>{"printf", ""});
}

TEST_CASE("exec: a command without dashes gets the line that works") {
    CHECK(error_of([] { parse(exec_verb, {"ls", "-l"}); }) != "");
    CHECK(error_of([] { parse(exec_verb, {"ls"}); }) ==
          "the command must follow \"--\" | write: deepinfra-sandboxd exec -- ls ...");
}

TEST_CASE("a wrong command line names the verb whose help has the answer") {
    CHECK(error_of([] { parse(status_verb, {"--jsno"}); }) ==
          "unrecognised option '--jsno' | see: deepinfra-sandboxd status --help");
    CHECK(error_of([] { parse(status_verb, {"x"}); }) ==
          "unexpected argument \"x\" | see: deepinfra-sandboxd status --help");
    CHECK(error_of([] {
              parse(exec_verb, {"--task", "a", "--task", "b", "--", "x"});
          }) == "--task is given twice | see: deepinfra-sandboxd exec --help");
    CHECK(error_of([] { parse(status_verb, {"--js"}); }) != ""); // no guessing
}

TEST_CASE("which sandbox: its id or its task, never a default") {
    CHECK(chosen({"sb_1"}) == R"({"id":"sb_1"})");
    CHECK(chosen({"--task", "t"}) == R"({"key":{"profile":"default","task":"t"}})");
    CHECK(chosen({"-p", "p"}) == R"({"key":{"profile":"p","task":"default"}})");
    CHECK(error_of([] { chosen({}); }) ==
          "which sandbox? Give its id or --task | see: deepinfra-sandboxd stop --help");
    CHECK(error_of([] {
              chosen({"sb_1", "--task", "t"});
          }) ==
          "give the sandbox's id or its task, not both | see: deepinfra-sandboxd stop --help");
    CHECK(error_of([] {
              chosen({"sb_1", "sb_2"});
          }) == "unexpected argument \"sb_2\" | see: deepinfra-sandboxd stop --help");
}

TEST_CASE("help: every option is shown and parsed, no line is wider than a terminal") {
    for (const verb* shown : all) {
        const std::string text = help(*shown);
        CAPTURE(text);
        for (const flag& known : shown->flags) {
            const std::string name(known.name);
            CHECK(text.find("--" + name.substr(0, name.find(','))) != std::string::npos);
        }
        CHECK(text.find("deepinfra-sandboxd " + std::string(shown->name)) != std::string::npos);
        CHECK(text.find("example") != std::string::npos);
        std::size_t begin = 0;
        for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos;
             begin = end + 1) {
            CHECK(end - begin <= 100);
        }
        CHECK_NOTHROW(parse(*shown, {"--help"}));
    }
}

TEST_CASE("failures: two sentences, escaped, with the prefix on both") {
    const failure why(exit_code::error, "no \x1b[2J", "do this");
    CHECK(render_failure(why, style(false)) == "error: no \\x1b[2J\nhint: do this\n");
    CHECK(render_failure(why, style(false), "p: ") == "p: error: no \\x1b[2J\np: hint: do this\n");
    CHECK(render_failure(failure(exit_code::error, "x"), style(false)) == "error: x\n");
}
