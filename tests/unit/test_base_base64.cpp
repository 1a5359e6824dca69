// Base64, strictly.
#include "base/base64.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <utility>

using namespace sandboxd;

TEST_CASE("base64: the vectors of RFC 4648") {
    const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                           {"f", "Zg=="},
                                                           {"fo", "Zm8="},
                                                           {"foo", "Zm9v"},
                                                           {"foob", "Zm9vYg=="},
                                                           {"fooba", "Zm9vYmE="},
                                                           {"foobar", "Zm9vYmFy"}};
    for (const auto& [bytes, text] : vectors) {
        CHECK(base64_encode(bytes) == text);
        CHECK(base64_decode(text) == std::string(bytes));
    }
    CHECK(base64_encode(std::string("\0\xff\xfb", 3)) == "AP/7");
    CHECK(base64_decode("AP/7") == std::string("\0\xff\xfb", 3));
}

TEST_CASE("base64: what comes out goes in again") {
    std::mt19937 random(3);
    for (std::size_t size = 0; size < 400; ++size) {
        std::string bytes;
        for (std::size_t i = 0; i < size; ++i)
            bytes += static_cast<char>(random());
        const std::string text = base64_encode(bytes);
        CHECK(text.size() == (size + 2) / 3 * 4);
        CHECK(base64_decode(text) == bytes);
    }
}

TEST_CASE("base64: anything else is refused") {
    const std::string valid = "Zm9vYmFyZm9v"; // whatever byte is put anywhere
    for (int byte = 0; byte < 256; ++byte) {
        const char c = static_cast<char>(byte);
        const bool in_alphabet = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                                 (c >= '0' && c <= '9') || c == '+' || c == '/';
        for (std::size_t at = 0; at < valid.size(); ++at) {
            std::string text = valid;
            text[at] = c;
            CAPTURE(text);
            CAPTURE(byte);
            const bool padding = c == '=' && at + 1 == text.size();
            CHECK(base64_decode(text).has_value() == (in_alphabet || padding));
        }
        if (!in_alphabet) {
            CAPTURE(byte);
            CHECK_FALSE(base64_decode(valid + std::string(4, c)));
            CHECK_FALSE(base64_decode(std::string(4, c) + valid));
            CHECK_FALSE(base64_decode(std::string(4, c)));
        }
    }
    for (const char* text :
         {"Z", "Zg", "Zg=", "Zg===", "Z===", "====", "=", "Zg==Zg==", "Zm=v",
          "=Zg=", "Zg== ", " Zg==", "Zg\n==", "Zg==\n", "Zm9v\r\n", "Zm9v----", "Z m9v"}) {
        CAPTURE(text);
        CHECK_FALSE(base64_decode(text));
    }
}
