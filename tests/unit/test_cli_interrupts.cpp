// Who asks once by two signals, and who asks twice.
#include "cli/interrupts.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::cli;
using namespace std::chrono_literals;
using meaning = interrupts::meaning;

TEST_CASE("interrupts: the first one is a request, those right behind it are the same one") {
    const interrupts::clock::time_point begin{100s};
    interrupts seen;
    CHECK(seen.came(begin) == meaning::end);
    CHECK(seen.came(begin) == meaning::echo);
    CHECK(seen.came(begin + 299ms) == meaning::echo);
    // Echoes do not put it off: who goes on pressing gets away.
    CHECK(seen.came(begin + 300ms) == meaning::at_once);
    CHECK(seen.came(begin + 301ms) == meaning::at_once);
}

TEST_CASE("interrupts: a later one means at once") {
    const interrupts::clock::time_point begin{100s};
    interrupts seen;
    CHECK(seen.came(begin) == meaning::end);
    CHECK(seen.came(begin + 1h) == meaning::at_once);
}
