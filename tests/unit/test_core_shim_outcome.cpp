// How a command has ended, out of `shim ps`.
#include "core/shim_outcome.hpp"
#include "exec_bench.hpp"
#include "shim_bench.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace sandboxd;
using namespace sandboxd::test;

namespace {

std::string outcome_of(std::string_view id, const std::string& frames) {
    core::shim_parser parser;
    parser.feed("deepinfra-shim/1 ps build=1 arch=x86_64 uid=0 boot=b\n" + frames);
    core::shim_outcome outcome{std::string(id)};
    while (const std::optional<core::shim_frame> frame = parser.next()) {
        outcome.take(*frame);
    }
    return outcome.exit() ? text_of(*outcome.exit()) : "-";
}

std::string line_of(const std::string& id, const std::string& end) {
    return "exec id=" + id + " state=ended pid=5 age_ms=9 descendants=0 pos=7 start=0 followed=0 " +
           end + "\n";
}

} // namespace

TEST_CASE("shim outcome: the one that is asked for") {
    const std::string others = line_of("aa", "code=1 signal=- reason=exited") +
                               line_of("b", "code=2 signal=- reason=exited");
    CHECK(outcome_of("a", others + line_of("a", "code=3 signal=- reason=exited")) ==
          "exited 3 yes");
    CHECK(outcome_of("a", others) == "-");
    CHECK(outcome_of("a", line_of("a", "code=- signal=15 reason=exited")) == "exited 143 yes");
    CHECK(outcome_of("a", line_of("a", "code=- signal=9 reason=timed_out")) == "timed_out 124 yes");
    CHECK(outcome_of("a", line_of("a", "code=- signal=9 reason=cancelled")) == "cancelled 130 yes");
    CHECK(outcome_of("a", line_of("a", "code=- signal=- reason=cancelled")) ==
          "cancelled 130 unknown");
}

TEST_CASE("shim outcome: what is no end, or makes no sense, is none") {
    for (const char* end : {"code=- signal=- reason=-", "code=- signal=- reason=failed",
                            "code=999 signal=- reason=exited", "code=- signal=- reason=exited",
                            "code=3 signal=-", "code=3 reason=success"}) {
        CAPTURE(end);
        CHECK(outcome_of("a", line_of("a", end)) == "-");
    }
}
