// JSON strings written and read by hand, held against Boost.JSON.
#include "base/json_text.hpp"

#include "base/utf8.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

using namespace sandboxd;

namespace {

namespace json = boost::json;

std::string written(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
}

// What a whole string literal with its quotes stands for; nothing if it was left to others.
std::optional<std::string> understood(std::string_view literal) {
    std::string out;
    const auto end = append_json_unescaped(out, literal.substr(1));
    if (!end) {
        return std::nullopt;
    }
    CHECK(*end + 2 == literal.size());
    return out;
}

std::string random_text(std::mt19937& random) {
    static const std::vector<std::string> parts = {"\n",
                                                   "\"",
                                                   "\\",
                                                   std::string(1, '\0'),
                                                   "\x1f",
                                                   "\x7f",
                                                   "€",
                                                   "😀",
                                                   "plain text of some length",
                                                   "a",
                                                   "\r\n",
                                                   "\t",
                                                   " ",
                                                   "!",
                                                   "#",
                                                   "[",
                                                   "]",
                                                   "\u2028",
                                                   "ü"};
    std::string text;
    for (std::size_t n = random() % 12; n > 0; --n) {
        text += parts[random() % parts.size()];
    }
    return text;
}

} // namespace

TEST_CASE("json text: every single byte, at every place of a word") {
    for (int byte = 0; byte < 0x80; ++byte) {
        for (std::size_t before = 0; before < 17; ++before) {
            const std::string text =
                std::string(before, 'x') + static_cast<char>(byte) + std::string(16 - before, '!');
            CAPTURE(byte);
            CAPTURE(before);
            CHECK(json::parse(written(text)).as_string() == text);
            CHECK(understood(json::serialize(json::string(text))) == text);
        }
    }
}

TEST_CASE("json text: what is written is what a general parser reads, and the other way round") {
    std::mt19937 random(11);
    for (int round = 0; round < 3000; ++round) {
        const std::string text = random_text(random);
        CHECK(json::parse(written(text)).as_string() == text);
        CHECK(understood(json::serialize(json::string(text))) == text);
        CHECK(understood(written(text)) == text);
    }
}

TEST_CASE("json text: escapes") {
    CHECK(understood(R"("\u0041\u00e9\u20AC\/\b\f\n\r\t\"\\")") == "Aé€/\b\f\n\r\t\"\\");
    CHECK(understood(R"("\u0000")") == std::string(1, '\0'));
    CHECK(understood("\"\"") == "");
}

TEST_CASE("json text: what is not plain is left to a general parser") {
    for (const char* literal : {"\"no end", "\"\\", "\"\\\"", "\"\\u", "\"\\u12\"", "\"\\u123g\"",
                                "\"\\ud83d\\ude00\"", "\"\\udc00\"", "\"\\x41\"", "\"\n\"",
                                "\"\x01\"", "\"\xff\"", "\"\xe2\\n\x82\xac\"", "\"\xe2\x82\"", "\"\xed\xa0\x80\""}) {
        CAPTURE(literal);
        std::string out;
        CHECK_FALSE(append_json_unescaped(out, std::string_view(literal).substr(1)));
    }
}

TEST_CASE("json text: never more is taken for a string than a general parser would") {
    std::mt19937 random(5);
    for (int round = 0; round < 20000; ++round) {
        std::string literal = written(random_text(random));
        for (std::size_t n = random() % 3; n > 0; --n) {
            literal[random() % literal.size()] = static_cast<char>(random());
        }
        std::string out;
        const auto end = append_json_unescaped(out, std::string_view(literal).substr(1));
        if (end && literal[0] == '"') {
            boost::system::error_code error;
            const json::value value =
                json::parse(std::string_view(literal).substr(0, *end + 2), error);
            CAPTURE(literal);
            REQUIRE_FALSE(error);
            CHECK(value.as_string() == out);
        }
    }
}
