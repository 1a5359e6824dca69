// How much of a command's output its sandbox is told to forget.
#include "core/spool_release.hpp"

#include <doctest/doctest.h>

using sandboxd::core::release_upto;

TEST_CASE("spool release: seldom, and half of the spool stays for whoever comes later") {
    constexpr std::uint64_t spool = 1'000;
    std::uint64_t released = 0;
    int words = 0;
    for (std::uint64_t safe = 0; safe <= 10'000; ++safe) {
        const std::uint64_t upto = release_upto(safe, released, spool, false);
        REQUIRE(upto >= released);
        REQUIRE(upto <= safe);
        REQUIRE(safe - upto < 750); // or it would be full soon
        if (upto != released) {
            CHECK(safe - upto == 500);
            ++words;
        }
        released = upto;
    }
    CHECK(words == 38); // one a quarter, when three quarters are there
    CHECK(release_upto(749, 0, spool, false) == 0);
}

TEST_CASE("spool release: where the command waits, all that is safe") {
    CHECK(release_upto(300, 100, 1'000, true) == 300);
    CHECK(release_upto(100, 100, 1'000, true) == 100);
    CHECK(release_upto(50, 100, 1'000, true) == 100); // what was told stands
}
