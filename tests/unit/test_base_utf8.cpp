// Valid UTF-8 by RFC 3629, and where bytes may be cut.
#include "base/utf8.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>

using namespace sandboxd;

namespace {

std::string encode(std::uint32_t point, int length) {
    switch (length) {
    case 1:
        return {static_cast<char>(point)};
    case 2:
        return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 63))};
    case 3:
        return {static_cast<char>(0xE0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 63)),
                static_cast<char>(0x80 | (point & 63))};
    default:
        return {static_cast<char>(0xF0 | point >> 18), static_cast<char>(0x80 | (point >> 12 & 63)),
                static_cast<char>(0x80 | (point >> 6 & 63)),
                static_cast<char>(0x80 | (point & 63))};
    }
}

int shortest(std::uint32_t point) {
    return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
}

} // namespace

TEST_CASE("utf8: every code point, and no other way to write it") {
    int wrong = 0;
    for (std::uint32_t point = 0; point < 0x200000; ++point) {
        const bool valid = point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
        for (int length = shortest(point); length <= 4; ++length) {
            wrong += is_utf8(encode(point, length)) != (valid && length == shortest(point)) ? 1 : 0;
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("utf8: the prefix ends in front of what is wrong or unfinished") {
    const std::string euro = "\xE2\x82\xAC";
    const std::string smile = "\xF0\x9F\x98\x80";
    CHECK(valid_utf8_prefix("") == 0);
    CHECK(valid_utf8_prefix("abc") == 3);
    CHECK(valid_utf8_prefix(std::string("a\0b", 3)) == 3);
    CHECK(valid_utf8_prefix(euro + smile) == 7);
    CHECK(valid_utf8_prefix(euro + smile.substr(0, 3)) == 3);
    CHECK(valid_utf8_prefix(euro.substr(0, 2)) == 0);
    CHECK(valid_utf8_prefix("a\xff"
                            "b") == 1);
    CHECK(valid_utf8_prefix("a\x80") == 1);
    CHECK(valid_utf8_prefix("a\xC0\x80") == 1);
    CHECK(valid_utf8_prefix("a\xE0\x80\x80") == 1);
    CHECK(valid_utf8_prefix("a\xED\xA0\x80") == 1);
    CHECK(valid_utf8_prefix("a\xF4\x90\x80\x80") == 1);
    CHECK(valid_utf8_prefix("a\xE2(\xAC") == 1);
}

TEST_CASE("utf8: wherever it stands among eight bytes a step") {
    for (std::size_t lead = 0; lead < 40; ++lead) {
        const std::string text = std::string(lead, 'a') + "\xC3\xA4";
        CHECK(valid_utf8_prefix(text) == lead + 2);
        CHECK(valid_utf8_prefix(text + std::string(20, 'b')) == lead + 22);
        CHECK(valid_utf8_prefix(text.substr(0, lead + 1)) == lead);
        CHECK(valid_utf8_prefix(std::string(lead, 'a') + "\xff" + std::string(20, 'b')) == lead);
    }
}

TEST_CASE("utf8: a prefix of random bytes is valid and cannot be longer") {
    std::mt19937 random(11);
    for (int i = 0; i < 20'000; ++i) {
        std::string bytes;
        for (unsigned n = random() % 12; n > 0; --n)
            bytes += static_cast<char>(random() % 3 == 0 ? random() : 0x80 | random());
        const std::size_t size = valid_utf8_prefix(bytes);
        REQUIRE(size <= bytes.size());
        REQUIRE(is_utf8(bytes.substr(0, size)));
        for (std::size_t longer = size + 1; longer <= bytes.size(); ++longer) {
            REQUIRE_FALSE(is_utf8(bytes.substr(0, longer)));
        }
    }
}
