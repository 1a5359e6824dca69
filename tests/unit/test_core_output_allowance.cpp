// When a follower leaves by itself, so that the platform's limit on output is not met.
#include "core/output_allowance.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::core;

TEST_CASE("output allowance: half of what had come when the limit was met") {
    output_allowance one;
    const auto before = one.most();
    CHECK(before >= 1U << 20);
    one.on_ended("Command output exceeded the limit of 3000000 bytes", 3'000'000);
    CHECK(one.most() == 1'500'000);
    one.on_ended("OUTPUT TOO LARGE", 2'000'000);
    CHECK(one.most() == 1'000'000);
    one.on_ended("output too large", 60'000'000); // never more
    CHECK(one.most() == 1'000'000);
    one.on_ended("output too large", 10); // nor so little that nothing gets on
    CHECK(one.most() == 256U << 10);
}

TEST_CASE("output allowance: other endings say nothing of it") {
    output_allowance one;
    const auto before = one.most();
    one.on_ended("Command exceeded the maximum of 1800 seconds", 3'000'000);
    one.on_ended("", 3'000'000);
    CHECK(one.most() == before);
}
