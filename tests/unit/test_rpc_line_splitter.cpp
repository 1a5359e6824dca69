// Bytes to lines, however they arrive, and the limit of one.
#include "rpc/line_splitter.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using sandboxd::rpc::line_splitter;
using sandboxd::rpc::max_line;
using lines = std::vector<std::string>;

namespace {

lines all_of(line_splitter& splitter) {
    lines found;
    while (const auto line = splitter.next())
        found.emplace_back(*line);
    return found;
}

} // namespace

TEST_CASE("line splitter: lines in one piece") {
    line_splitter splitter;
    splitter.feed("one\n\ntwo\r\nthr");
    CHECK(all_of(splitter) == lines{"one", "", "two\r"});
    CHECK(splitter.midline());
    splitter.feed("ee\n");
    CHECK(all_of(splitter) == lines{"three"});
    CHECK_FALSE(splitter.midline());
    CHECK_FALSE(splitter.overflowed());
}

TEST_CASE("line splitter: nothing in, nothing out") {
    line_splitter splitter;
    CHECK(all_of(splitter).empty());
    splitter.feed("");
    CHECK(all_of(splitter).empty());
    CHECK_FALSE(splitter.midline());
}

TEST_CASE("line splitter: byte by byte, with zero bytes") {
    line_splitter splitter;
    const std::string text("a\0b\nc\n", 6);
    lines found;
    for (const char c : text) {
        splitter.feed({&c, 1});
        for (std::string& line : all_of(splitter))
            found.push_back(std::move(line));
    }
    CHECK(found == lines{std::string("a\0b", 3), "c"});
}

TEST_CASE("line splitter: fed again before every line was taken") {
    line_splitter splitter;
    splitter.feed("a\nb\nc");
    CHECK(splitter.next() == "a");
    splitter.feed("c\nd\n");
    CHECK(all_of(splitter) == lines{"b", "cc", "d"});
}

TEST_CASE("line splitter: the limit counts the newline") {
    CHECK(max_line == 1'048'576);
    const auto take = [](std::size_t limit, const std::string& text, std::size_t piece) {
        line_splitter splitter(limit);
        lines found;
        for (std::size_t at = 0; at < text.size(); at += piece) {
            splitter.feed(std::string_view(text).substr(at, piece));
            for (std::string& line : all_of(splitter))
                found.push_back(std::move(line));
        }
        found.push_back(splitter.overflowed() ? "overflowed" : "fine");
        return found;
    };
    for (const std::size_t piece : {1, 2, 3, 100}) {
        CAPTURE(piece);
        CHECK(take(5, "1234\n", piece) == lines{"1234", "fine"});
        CHECK(take(5, "12345\n", piece) == lines{"overflowed"});
        CHECK(take(5, "1234", piece) == lines{"fine"});
        CHECK(take(5, "12345", piece) == lines{"overflowed"});
        CHECK(take(5, "1\n12345\n2\n", piece) == lines{"1", "overflowed"});
        CHECK(take(5, "1234\n1234\n", piece) == lines{"1234", "1234", "fine"});
        CHECK(take(1, "\n\n", piece) == lines{"", "", "fine"});
        CHECK(take(1, "a\n", piece) == lines{"overflowed"});
    }
    CHECK(take(max_line, std::string(max_line - 1, 'x') + "\n", 65'536).size() == 2);
    CHECK(take(max_line, std::string(max_line, 'x') + "\n", 65'536) == lines{"overflowed"});
}

TEST_CASE("line splitter: after a line too long nothing comes any more") {
    line_splitter splitter(4);
    splitter.feed("12345");
    CHECK_FALSE(splitter.next());
    CHECK(splitter.overflowed());
    splitter.feed("\nok\n");
    CHECK_FALSE(splitter.next());
    CHECK(splitter.overflowed());
}

TEST_CASE("line splitter: random pieces of random lines") {
    std::mt19937 random(5);
    for (int walk = 0; walk < 500; ++walk) {
        std::string text;
        lines sent;
        for (int i = 0; i < 20; ++i) {
            sent.emplace_back(random() % 9, static_cast<char>('a' + i));
            text += sent.back() + "\n";
        }
        line_splitter splitter(10);
        lines found;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t piece = 1 + random() % 30;
            splitter.feed(std::string_view(text).substr(at, piece));
            at += piece;
            if (random() % 3 == 0) continue; // not looked at yet
            for (std::string& line : all_of(splitter))
                found.push_back(std::move(line));
        }
        for (std::string& line : all_of(splitter))
            found.push_back(std::move(line));
        CHECK(found == sent);
        CHECK_FALSE(splitter.midline());
    }
}
