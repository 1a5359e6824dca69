// What `shim ps` says of work in the background.
#include "core/shim_background.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::core;

namespace {

shim_background read(const std::string& frames) {
    shim_parser parser;
    parser.feed("deepinfra-shim/1 ps build=x arch=x86_64 uid=0 boot=b\n" + frames);
    shim_background report;
    while (const auto frame = parser.next()) {
        report.take(*frame);
    }
    CHECK(parser.broken().empty());
    return report;
}

std::string exec(const std::string& id, const std::string& state, int descendants) {
    return "exec id=" + id + " state=" + state +
           " pid=7 age_ms=125900 descendants=" + std::to_string(descendants) +
           " pos=0 start=0 followed=0 code=- signal=- reason=-\n";
}

} // namespace

TEST_CASE("background: nothing there") {
    const shim_background report = read("done n=0\n");
    CHECK(report.complete());
    CHECK(report.what() == background::none);
    CHECK(report.text().empty());
}

TEST_CASE("background: an answer without its end is none") {
    CHECK_FALSE(read("").complete());
    CHECK_FALSE(read(exec("a", "background", 1)).complete());
}

TEST_CASE("background: only what lives counts") {
    for (const char* state : {"ended", "claimed", "started", "exited", "finished", "failed",
                              "cancelled", "something-new"}) {
        CAPTURE(state);
        CHECK(read(exec("a", state, 0) + "done n=1\n").what() == background::none);
        CHECK(read(exec("a", state, 1) + "done n=1\n").what() == background::running);
    }
    CHECK(read(exec("a", "running", 0) + "done n=1\n").what() == background::running);
    CHECK(read(exec("a", "draining", 0) + "done n=1\n").what() == background::running);
    CHECK(read(exec("a", "background", 2) + "done n=1\n").what() == background::running);
}

TEST_CASE("background: it is told in a few words, however many there are") {
    CHECK(read(exec("build", "background", 3) + exec("b", "background", 1) + "done n=2\n").text() ==
          "3 processes of build (for 125 s), 1 process of b (for 125 s)");
    std::string many;
    for (int i = 0; i < 50; ++i) {
        many += exec("e" + std::to_string(i), "running", 1);
    }
    const std::string text = read(many + "done n=50\n").text();
    CHECK(text.find("and 47 more commands") != std::string::npos);
    CHECK(text.size() < 300);
}
