// When the platform is asked again, nobody having asked for it.
#include "core/look_interval.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::core;
using namespace std::chrono_literals;

TEST_CASE("look again: from time to time, and sooner for a reason") {
    CHECK(look_again_in({}) == 5min);
    CHECK(look_again_in({.place_wanted = true}) == 10s);
    CHECK(look_again_in({.on_its_way = true}) == 10s);
    CHECK(look_again_in({.doubtful = true}) == 65s);
    CHECK(look_again_in({.another_word = true}) == 65s);
    CHECK(look_again_in({.place_wanted = true, .doubtful = true}) == 10s);
}
