// What is believed of the shim in a sandbox: only what the sandbox has said, and not for good.
#include "core/shim_presence.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>

using namespace sandboxd::core;
using verdict = shim_presence::verdict;

namespace {

constexpr milliseconds at{1'000};
constexpr milliseconds later{10'000};

} // namespace

TEST_CASE("shim presence: a new sandbox has no shim before it is put there") {
    shim_presence one;
    CHECK(one.may_be_there());
    one.on_created();
    CHECK_FALSE(one.may_be_there());
    CHECK(one.on_probe(at, "").what == verdict::works);
    CHECK(one.may_be_there());
    CHECK(one.unusable().empty());
}

TEST_CASE("shim presence: it cannot run where it, or whoever executes it, says so") {
    for (const int code : {126, 127}) {
        shim_presence one;
        CHECK(one.on_exited(at, code, "Permission denied").what == verdict::unusable);
        CHECK(one.unusable().find(std::to_string(code)) != std::string::npos);
        CHECK(one.unusable().find("Permission denied") != std::string::npos);
        CHECK_FALSE(one.may_be_there());
    }
    shim_presence one;
    CHECK(one.on_probe(at, "named sockets").what == verdict::unusable);
    CHECK(one.unusable().find("named sockets") != std::string::npos);
    CHECK(one.on_probe(at, "").what == verdict::works);
    CHECK(one.unusable().empty());
}

TEST_CASE("shim presence: what is missing is said with its reason") {
    const auto said = [](std::map<std::string, std::string, std::less<>> fields) {
        return missing_in(shim_note{"probe", std::move(fields), {}});
    };
    CHECK(said({{"ok", "1"}, {"abstract", "0"}}) == "");
    CHECK(said({{"ok", "1"}, {"spool", "28"}, {"memfd", "38"}}) == ""); // it can do without
    CHECK(said({{"ok", "0"}, {"abstract", "0"}, {"claims", "28"}}) ==
          "files in /workspace (No space left on device)");
    CHECK(said({{"ok", "0"}, {"proc", "2"}, {"orphan", "10"}}) ==
          "processes that outlive their parents (No child processes), /proc (No such file or "
          "directory)");
    // A sandbox may say anything.
    CHECK(said({}) == "it does not say what");
    CHECK(said({{"ok", "yes"}, {"proc", "a lot"}}) == "it does not say what");
    CHECK(said({{"ok", "0"}, {"proc", "99999"}}).find("/proc (") == 0);
}

TEST_CASE("shim presence: any other code is believed when it comes again and again") {
    for (const int code : {0, 1, 2, 137}) {
        CAPTURE(code);
        shim_presence one;
        CHECK(one.on_exited(at, code, "").what == verdict::failed);
        CHECK(one.unusable().empty());
        CHECK(one.on_exited(at, code, "").what == verdict::failed);
        CHECK(one.on_probe(at, "").what == verdict::works); // that ends the row
        CHECK(one.on_exited(at, code, "").what == verdict::failed);
        CHECK(one.on_exited(at, code, "").what == verdict::failed);
        CHECK(one.on_exited(at, code, "").what == verdict::unusable);
    }
}

TEST_CASE("shim presence: it is tried again in another boot, and after a while") {
    shim_presence one(later);
    one.on_use(1, at);
    one.on_exited(at, 126, "");
    one.on_use(1, at + later - milliseconds(1));
    CHECK_FALSE(one.unusable().empty());
    SUBCASE("another boot") {
        one.on_use(2, at);
    }
    SUBCASE("after a while") {
        one.on_use(1, at + later);
    }
    CHECK(one.unusable().empty());
    CHECK_FALSE(one.may_be_there()); // so it is put there first
    CHECK(one.on_exited(at + later, 126, "").what == verdict::unusable);
}

TEST_CASE("shim presence: what was found out elsewhere counts as well") {
    shim_presence one(later);
    one.on_unusable(at, "code 126");
    CHECK(one.unusable() == "code 126");
    CHECK_FALSE(one.may_be_there());
    one.on_use(1, at); // which boot that was in is not known
    CHECK_FALSE(one.unusable().empty());
    one.on_use(2, at);
    CHECK(one.unusable().empty());
}
