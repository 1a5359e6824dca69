// The reader of the shim's frames: every cut, and everything that a hostile sandbox may print.
#include "base/base64.hpp"
#include "core/shim_frames.hpp"
#include "shim_bench.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::core;
using namespace sandboxd::test;

namespace {

std::string read(std::string_view text) {
    shim_parser parser;
    parser.feed(text);
    std::string seen = drain(parser);
    return parser.broken().empty() ? seen : seen + "broken";
}

std::string whole_conversation() {
    return hello() + data('o', 0, 0, "one\n") + data('e', 4, 0, std::string("\0\xff\n", 3), false) +
           "note name=cwd errno=2 cwd=%2Fa%20b\n" + data('o', 7, 4, "o 1 2 r 3\nexit") +
           "gap pos=21 n=5 out=21 err=5\n" + data('e', 26, 5, "x") + "alive pos=27\n" +
           "unknown a=1 b\n" +
           "exit reason=exited started=yes code=3 signal=- pos=27 out=21 err=6 dropped=5 "
           "background=0 elapsed_ms=4 "
           "output=kept errno=- at=-\n";
}

const std::string whole_seen =
    "deepinfra-shim/1 =run arch=x86_64 boot=b build=1 err=0 id=x out=0 pos=0 state=new uid=0\n"
    "o 0 0 one\n\n" +
    std::string("e 4 0 \0\xff\n\n", 10) +
    "note cwd=/a b errno=2 name=cwd\n"
    "o 7 4 o 1 2 r 3\nexit\n"
    "gap err=5 n=5 out=21 pos=21\n"
    "e 26 5 x\n"
    "alive pos=27\n"
    "unknown =b a=1\n"
    "exit background=0 code=3 dropped=5 elapsed_ms=4 err=6 out=21 output=kept pos=27 "
    "reason=exited started=yes\n";

} // namespace

TEST_CASE("shim frames: a conversation") {
    CHECK(read(whole_conversation()) == whole_seen);
}

TEST_CASE("shim frames: cut at every position, and at every two") {
    const std::string text = whole_conversation();
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        CAPTURE(cut);
        shim_parser parser;
        parser.feed(std::string_view(text).substr(0, cut));
        std::string seen = drain(parser);
        REQUIRE(parser.broken().empty());
        REQUIRE(whole_seen.starts_with(seen)); // nothing half, nothing early
        parser.feed(std::string_view(text).substr(cut));
        seen += drain(parser);
        REQUIRE(seen == whole_seen);
        REQUIRE_FALSE(parser.midframe());
        REQUIRE(parser.pos() == 27);
    }
    shim_parser parser;
    std::string seen;
    for (const char c : text) {
        parser.feed({&c, 1});
        seen += drain(parser);
    }
    CHECK(seen == whole_seen);
}

TEST_CASE("shim frames: a payload is taken by its length alone") {
    const std::string lines = hello() + "exit reason=exited code=0\n";
    CHECK(read(hello() + data('o', 0, 0, lines)).ends_with("o 0 0 " + lines + "\n"));
}

TEST_CASE("shim frames: the greatest payload, in both codings") {
    const std::string most(65536, 'x');
    for (const bool raw : {true, false}) {
        CHECK(read(hello() + data('o', 0, 0, most, raw)).ends_with("o 0 0 " + most + "\n"));
        CHECK(read(hello() + data('o', 0, 0, most + "x", raw)).ends_with("broken"));
    }
}

TEST_CASE("shim frames: a packed payload") {
    const std::string text = "abcdabcdabcdabcdabcd";
    // Four literals, then 11 bytes from 4 back, then the five literals that end a block.
    const std::string block =
        std::string("\x47") + "abcd" + std::string("\4\0", 2) + "\x50" + "dabcd";
    const std::string payload = base64_encode(block);
    const auto frame = [&](std::string_view size, std::string_view length, std::string_view bytes) {
        return hello() + "o 0 0 z " + std::string(size) + " " + std::string(length) + "\n" +
               std::string(bytes) + "\n";
    };
    CHECK(read(frame("20", "20", payload)).ends_with("o 0 0 " + text + "\n"));
    for (const std::string& wrong :
         {frame("19", "20", payload), frame("21", "20", payload), frame("65536", "20", payload),
          frame("65537", "20", payload), frame("0", "20", payload), frame("20", "16", payload),
          frame("20", "0", ""), frame("20", "65537", payload), frame("20", "-4", payload),
          frame("20", "20", std::string(20, 'A')), frame("20", "20", "!" + payload.substr(1)),
          hello() + "o 0 0 z 20\n" + payload + "\n",
          hello() + "o 0 0 z 20 20 20\n" + payload + "\n",
          // a distance that leads before the block's beginning
          frame("20", "20",
                base64_encode(std::string("\x47") + "abcd" + std::string("\5\0", 2) + "\x50" +
                              "dabcd"))}) {
        CAPTURE(wrong);
        CHECK(read(wrong).ends_with("broken"));
    }
    const std::string whole = frame("20", "20", payload) + "alive pos=20\n";
    for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
        shim_parser parser;
        parser.feed(std::string_view(whole).substr(0, cut));
        std::string seen = drain(parser);
        parser.feed(std::string_view(whole).substr(cut));
        CHECK((seen + drain(parser)).ends_with("o 0 0 " + text + "\nalive pos=20\n"));
    }
}

TEST_CASE("shim frames: resumed from the middle") {
    CHECK(read(hello(100, 30) + data('e', 100, 30, "x") + data('o', 101, 70, "y"))
              .ends_with("e 100 30 x\no 101 70 y\n"));
}

TEST_CASE("shim frames: a greeting that does not know the streams' offsets is followed by a gap "
          "that does") {
    const std::string vague = "deepinfra-shim/1 follow state=dead pos=9 out=0 err=0\n";
    CHECK(read(vague + "lost claim=started\n").ends_with("lost claim=started\n"));
    CHECK(read(vague + "gap pos=9 n=1 out=4 err=6\n" + data('e', 10, 6, "x"))
              .ends_with("e 10 6 x\n"));
    CHECK(read(vague + "gap pos=9 n=1 out=4 err=5\n").ends_with("broken"));
}

TEST_CASE("shim frames: what is not a shim's") {
    for (const std::string& text : std::vector<std::string>{
             "\n", " \n", "hello\n", "deepinfra-shim/2 run pos=0 out=0 err=0\n",
             "bash: shim: not found\n", data('o', 0, 0, "x"), "exit reason=exited code=0\n", "o\n",
             hello() + hello(), "deepinfra-shim/1 run pos=5 out=1 err=1\n" + data('o', 5, 1, "x"),
             "deepinfra-shim/1 run pos=5\n" + data('o', 5, 5, "x"),
             // positions
             hello() + data('o', 1, 0, "x"), hello() + data('o', 0, 1, "x"),
             hello(10) + data('o', 0, 0, "x"),
             hello() + data('o', 0, 0, "x") + data('o', 0, 0, "x"),
             hello() + data('o', 0, 0, "x") + data('e', 1, 1, "x"),
             // lengths
             hello() + "o 0 0 r 0\n\n", hello() + "o 0 0 r -1\n", hello() + "o 0 0 r 65537\n",
             hello() + "o 0 0 r 1x\nx\n", hello() + "o 0 0 r 18446744073709551616\n",
             hello() + "o 0 0 r 9223372036854775808\n", hello() + "o 0 0 r 18446744073709551615\n",
             hello() + "o 0 0 r +1\nx\n", hello() + "o 0 0 r 0x1\nx\n", hello() + "o 0 0 r 1\nxx\n",
             hello() + "o -0 0 r 1\nx\n", hello() + "o 0 0 r 1 1\nx\n", hello() + "o 0 0 r\n",
             hello() + "o 0 0 q 1\nx\n", hello() + "o  0 0 r 1\nx\n",
             hello() + "o 18446744073709551616 0 r 1\nx\n",
             // base64
             hello() + "o 0 0 b 1\nxxxx\n", hello() + "o 0 0 b 3\nxx x\n",
             hello() + "o 0 0 b 3\nAA==\n", hello() + "o 0 0 b 3\n====\n",
             // lines
             hello() + "a\x01\n", hello() + "a\x7f\n", hello() + "a\x80\n",
             hello() + std::string("a\0\n", 3), hello() + "a\r\n", hello() + "a b=%\n",
             hello() + "a b=%4\n", hello() + "a b=%zz\n", std::string(2048, 'a'),
             hello() + std::string(2048, 'a'), hello() + "a " + std::string(3000, 'b') + "\n",
             // gaps
             hello() + "gap pos=0 n=5 out=5 err=1\n", hello() + "gap pos=1 n=5 out=6 err=0\n",
             hello() + "gap pos=0 n=5\n",
             hello() + data('o', 0, 0, "xx") + "gap pos=2 n=5 out=1 err=6\n",
             hello() + "gap pos=0 n=9223372036854775808 out=9223372036854775808 err=0\n"}) {
        CAPTURE(text.substr(0, 200));
        shim_parser parser;
        parser.feed(text);
        drain(parser);
        CHECK_FALSE(parser.broken().empty());
        parser.feed(hello() + "exit reason=exited code=0\n");
        CHECK(drain(parser).empty()); // and never mends
    }
}

TEST_CASE("shim frames: too many fields, and a field said twice") {
    std::string many = hello() + "a";
    for (int i = 0; i < 100; ++i) {
        many += " k" + std::to_string(i) + "=1";
    }
    CHECK(read(many + "\n").ends_with("broken"));
    CHECK(read(hello() + "exit code=1 code=0\n").ends_with("exit code=1\n"));
}

TEST_CASE("shim frames: values") {
    shim_note note;
    note.fields = {{"a", "5"},
                   {"b", "-5"},
                   {"c", ""},
                   {"d", "9223372036854775807"},
                   {"e", "9223372036854775808"},
                   {"f", "5 "}};
    CHECK(note.number("a") == 5U);
    CHECK(note.number("d") == 9223372036854775807U);
    for (const char* key : {"b", "c", "e", "f", "none"}) {
        CHECK_FALSE(note.number(key));
    }
    CHECK(note.text("none").empty());
    CHECK(read(hello() + "a b=- c=%2D\n").ends_with("a c=-\n")); // "-" means none
}

TEST_CASE("shim frames: random mutations are refused or read within bounds") {
    std::mt19937 random(7919);
    const std::string text = whole_conversation();
    int broken = 0;
    int read_whole = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string mutated = text;
        for (unsigned count = random() % 4 + 1; count > 0; --count) {
            const std::size_t at = random() % mutated.size();
            switch (random() % 4) {
            case 0:
                mutated[at] = static_cast<char>(random());
                break;
            case 1:
                mutated.erase(at, random() % 8 + 1);
                break;
            case 2:
                mutated.insert(at, mutated.substr(random() % mutated.size(), random() % 16));
                break;
            default:
                mutated[at] = "0123456789 \n-%="[random() % 15];
                break;
            }
            if (mutated.empty()) {
                mutated = "x";
            }
        }
        shim_parser parser;
        std::uint64_t expected[2] = {0, 0};
        std::uint64_t pos = 0;
        const std::size_t step = random() % 40 + 1;
        for (std::size_t at = 0; at < mutated.size(); at += step) {
            parser.feed(std::string_view(mutated).substr(at, step));
            while (const auto frame = parser.next()) {
                REQUIRE(parser.hello_seen());
                if (const auto* piece = std::get_if<shim_data>(&*frame)) {
                    REQUIRE(piece->bytes.size() >= 1);
                    REQUIRE(piece->bytes.size() <= 65536);
                    REQUIRE(piece->pos >= pos); // never back, never twice
                    REQUIRE(piece->offset >= expected[piece->is_stderr ? 1 : 0]);
                    pos = piece->pos + piece->bytes.size();
                    expected[piece->is_stderr ? 1 : 0] = piece->offset + piece->bytes.size();
                    REQUIRE(parser.pos() == pos);
                }
            }
        }
        (parser.broken().empty() ? read_whole : broken) += 1;
    }
    CHECK(broken > 1'000);
    CHECK(read_whole > 1'000);
}

TEST_CASE(
    "shim frames: marks come in order, what cannot be read among them, and no more than asked") {
    shim_parser parser;
    parser.feed("deepinfra-shim/1 run build=x arch=x86_64 uid=0 boot=b id=e state=new pos=0 out=0 "
                "err=0 mark=a%20b mark=- mark= mark=d mark=e\n");
    const std::optional<shim_frame> frame = parser.next();
    REQUIRE(frame);
    const std::vector<std::optional<std::string>> expected{"a b", std::nullopt, "", "d"};
    CHECK(std::get<shim_note>(*frame).marks == expected);
}
