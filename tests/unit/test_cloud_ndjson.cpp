// The exec stream's lines, in every way they can be torn or wrong.
#include "base/utf8.hpp"
#include "cloud/ndjson.hpp"
#include "cloud/surrogates.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::cloud;

namespace {

using strings = std::vector<std::string>;

constexpr std::size_t line_cap = 1 << 16;

// What a stream said, in a form that is easy to compare: o:out, e:err, h, x<code>, r:message,
// c:<kind>.
struct said {
    std::string out;
    std::string err;
    std::string end;
};

std::string end_of(const exec_event& event) {
    if (const auto* exited = std::get_if<exec_exited>(&event))
        return "x" + std::to_string(exited->returncode);
    if (const auto* refused = std::get_if<exec_refused>(&event)) return "r:" + refused->message;
    if (const auto* cut = std::get_if<exec_cut>(&event)) {
        return cut->why.kind == failure_kind::bad_answer ? "c:bad" : "c:lost";
    }
    return {};
}

void note(said& so_far, const exec_event& event) {
    REQUIRE(so_far.end.empty());
    if (const auto* output = std::get_if<exec_output>(&event)) {
        CHECK(!output->text.empty());
        CHECK(is_utf8(output->text));
        (output->is_stderr ? so_far.err : so_far.out) += output->text;
    }
    so_far.end = end_of(event);
}

// Feeds `pieces`, taking what is there after each, to the end.
said hear(const std::vector<std::string_view>& pieces, std::size_t cap = line_cap) {
    ndjson_decoder decoder(cap, secret("k-canary"));
    said out;
    for (const auto piece : pieces) {
        decoder.append(piece);
        while (!decoder.ended()) {
            const auto event = decoder.next();
            if (!event) break;
            note(out, *event);
        }
    }
    while (!decoder.ended())
        note(out, decoder.finish(std::nullopt));
    return out;
}

said hear(std::string_view all) {
    return hear(std::vector<std::string_view>{all});
}

} // namespace

TEST_CASE("cloud ndjson: the known lines") {
    const auto s = hear(
        "{\"stdout\":\"a\\n\"}\n{}\n{\"stderr\":\"b\"}\n{\"stdout\":\"c\"}\n{\"returncode\":3}\n");
    CHECK(s.out == "a\nc");
    CHECK(s.err == "b");
    CHECK(s.end == "x3");
    CHECK(hear("{\"error\":\"command timed out\"}\n").end == "r:command timed out");
    CHECK(hear("{\"returncode\":-9}\n").end == "x-9");
}

TEST_CASE("cloud ndjson: order between the streams is kept, neighbours are joined") {
    ndjson_decoder decoder(line_cap, secret());
    decoder.append(
        "{\"stdout\":\"a\"}\n{\"stdout\":\"b\"}\n{}\n{\"stderr\":\"c\"}\n{\"stdout\":\"d\"}\n");
    const auto first = std::get<exec_output>(*decoder.next());
    CHECK(first.text == "ab");
    CHECK(!first.is_stderr);
    CHECK(std::get<exec_output>(*decoder.next()).text == "c");
    CHECK(std::get<exec_output>(*decoder.next()).text == "d");
    CHECK(!decoder.next());
    decoder.append("{}\n{}\n");
    CHECK(std::holds_alternative<exec_heartbeat>(*decoder.next()));
    CHECK(!decoder.next());
}

TEST_CASE("cloud ndjson: joining is bounded") {
    ndjson_decoder decoder(line_cap, secret());
    std::string many;
    for (int i = 0; i < 4096; ++i)
        many += "{\"stdout\":\"" + std::string(100, 'x') + "\"}\n";
    decoder.append(many);
    std::size_t sum = 0;
    while (const auto event = decoder.next()) {
        const auto& text = std::get<exec_output>(*event).text;
        CHECK(text.size() < (64 << 10) + 100);
        sum += text.size();
    }
    CHECK(sum == 409600);
}

TEST_CASE("cloud ndjson: torn at every place, and in threes, it says the same") {
    const std::string all =
        "{\"stdout\":\"e\xe2\x82\xac \xf0\x9f\x98\x80 \\u20ac \\ud83d\\ude00 "
        "\\\"q\\\\\\n\"}\r\n\r\n \n{}\n"
        "{\"stderr\":\"\xc3\xa9\",\"new\":{\"stdout\":[\"no\",{\"x\":1e5}],\"returncode\":1}}\n"
        "{\"stdout\":\"\\u0000z\"}\n{\"returncode\":0,\"took\":1.5}\n";
    const auto whole = hear(all);
    CHECK(whole.out ==
          std::string("e\xe2\x82\xac \xf0\x9f\x98\x80 \xe2\x82\xac \xf0\x9f\x98\x80 \"q\\\n") +
              '\0' + "z");
    CHECK(whole.err == "\xc3\xa9");
    CHECK(whole.end == "x0");
    const std::string_view view(all);
    for (std::size_t i = 0; i <= all.size(); ++i) {
        const auto two = hear({view.substr(0, i), view.substr(i)});
        REQUIRE(two.out == whole.out);
        REQUIRE(two.err == whole.err);
        REQUIRE(two.end == whole.end);
        // Ended there for good, it is never taken for a success, and what came before stands.
        const auto cut = hear({view.substr(0, i)});
        const bool has_end = i >= all.size() - 1;
        REQUIRE(cut.end == (has_end ? "x0" : "c:lost"));
        REQUIRE(whole.out.starts_with(cut.out));
    }
    std::vector<std::string_view> bytes;
    for (std::size_t i = 0; i < all.size(); ++i)
        bytes.push_back(view.substr(i, 1));
    CHECK(hear(bytes).out == whole.out);
    CHECK(hear(bytes).end == "x0");
}

TEST_CASE("cloud ndjson: a last line without a newline counts if it is whole") {
    CHECK(hear("{\"returncode\":7}").end == "x7");
    const auto both = hear("{\"stdout\":\"a\",\"returncode\":7}");
    CHECK(both.out == "a");
    CHECK(both.end == "x7");
    const auto output = hear("{\"stdout\":\"a\"}");
    CHECK(output.out == "a");
    CHECK(output.end == "c:lost");
    CHECK(hear("").end == "c:lost");
    CHECK(hear("{\"returncode\":7").end == "c:lost");
    CHECK(hear("7").end == "c:lost");

    ndjson_decoder decoder(line_cap, secret());
    decoder.append("{\"stdout\":\"a");
    CHECK(!decoder.next());
    const auto cut = decoder.finish(failure{failure_kind::interrupted, 200, "reset", std::nullopt});
    CHECK(std::get<exec_cut>(cut).why.message == "reset");
    CHECK(decoder.ended());
}

TEST_CASE("cloud ndjson: several things in one line") {
    const auto s = hear("{\"stderr\":\"e\",\"stdout\":\"o\",\"returncode\":2}\n");
    CHECK(s.err == "e");
    CHECK(s.out == "o");
    CHECK(s.end == "x2");
    CHECK(hear("{\"stdout\":null,\"stderr\":null,\"returncode\":null,\"error\":null}\n{"
               "\"returncode\":0}\n")
              .end == "x0");
    CHECK(hear("{\"returncode\":0,\"error\":null}\n").end == "x0");
    CHECK(hear("{\"returncode\":0,\"error\":\"\"}\n").end == "x0");
    // A failure is not told as a success.
    CHECK(hear("{\"returncode\":0,\"error\":\"out of memory\"}\n").end == "r:out of memory");
    CHECK(
        hear("{\"error\":{\"code\":\"x\",\"message\":\"m\",\"more\":{\"message\":\"n\"}}}\n").end ==
        "r:m");
    CHECK(hear("{\"error\":\"\"}\n").end == "r:the platform ended the command without saying why");
    CHECK(hear("{\"error\":{}}\n").end == "r:the platform ended the command without saying why");
    CHECK(hear("{\"error\":\"saw k-canary\"}\n").end == "r:saw ***");
}

TEST_CASE("cloud ndjson: nothing counts after the terminal line") {
    const auto s = hear("{\"returncode\":0}\n{\"stdout\":\"late\"}\n{\"returncode\":1}\nrubbish");
    CHECK(s.end == "x0");
    CHECK(s.out.empty());
}

TEST_CASE("cloud ndjson: what cannot be understood ends the stream, and what came before stands") {
    for (const std::string& bad : strings{"x",
                                          "{",
                                          "}",
                                          "[]",
                                          "7",
                                          "null",
                                          "\"stdout\"",
                                          "{\"stdout\":\"b\"",
                                          "{\"stdout\":\"b\"}}",
                                          "{\"stdout\":\"b\"} {}",
                                          "{\"stdout\":5}",
                                          "{\"stdout\":{}}",
                                          "{\"stdout\":[\"b\"]}",
                                          "{\"stderr\":true}",
                                          "{\"stdout\":\"b\",\"stderr\":1}",
                                          "{\"returncode\":\"0\"}",
                                          "{\"returncode\":0.5}",
                                          "{\"returncode\":99999999999}",
                                          "{\"returncode\":99999999999999999999}",
                                          "{\"returncode\":1e99}",
                                          "{\"returncode\":{}}",
                                          "{\"returncode\":true}",
                                          "{\"error\":5}",
                                          "{\"error\":[\"m\"]}",
                                          "{\"stdout\":\"b\",}",
                                          "{'stdout':'b'}",
                                          "{\"stdout\":\"b\x01\"}",
                                          "{\"stdout\":\"\\x\"}",
                                          "{\"stdout\":\"\\u12\"}",
                                          "{\"stdout\":\"b\" /* c */}",
                                          "<html>"}) {
        CAPTURE(bad);
        const auto s = hear("{\"stdout\":\"a\"}\n" + std::string(bad) + "\n{\"returncode\":0}\n");
        CHECK(s.out == "a");
        CHECK(s.err.empty());
        CHECK(s.end == "c:bad");
    }
    CHECK(hear("{\"stdout\":\"" + std::string(100, '[') + "\"}\n{\"returncode\":0}\n").end == "x0");
    CHECK(
        hear("{\"new\":" + std::string(40, '[') + std::string(40, ']') + "}\n{\"returncode\":0}\n")
            .end == "c:bad");
    CHECK(hear("{\"returncode\":2.0}\n").end == "x2");
}

TEST_CASE("cloud ndjson: text that is not Unicode is mended, not fatal") {
    const std::string fffd = "\xef\xbf\xbd";
    CHECK(hear("{\"stdout\":\"a\\ud83dz\"}\n{\"returncode\":0}\n").out == "a" + fffd + "z");
    CHECK(hear("{\"stdout\":\"a\\ude00z\"}\n{\"returncode\":0}\n").out == "a" + fffd + "z");
    CHECK(hear("{\"stdout\":\"\\ud83d\"}\n{\"stdout\":\"\\ude00\"}\n{\"returncode\":0}\n").out ==
          fffd + fffd);
    CHECK(hear("{\"stdout\":\"\\ud83d\\ud83d\\ude00\"}\n{\"returncode\":0}\n").out ==
          fffd + "\xf0\x9f\x98\x80");
    CHECK(hear("{\"stdout\":\"\\\\ud83d\"}\n{\"returncode\":0}\n").out == "\\ud83d");
    CHECK(hear("{\"stdout\":\"a\xff"
               "b\xe2\x82\"}\n{\"returncode\":4}\n")
              .out == "a" + fffd + "b" + fffd);
    CHECK(hear("{\"stdout\":\"a\xff"
               "b\"}\n{\"returncode\":4}\n")
              .end == "x4");
    CHECK(hear("{\"stdout\":\"a\\udc80b\xff\\uZZ\"}\n").end == "c:bad");
}

TEST_CASE("cloud ndjson: a line has a cap") {
    const auto line = [](std::size_t size) {
        const std::string frame = "{\"stdout\":\"\"}";
        return "{\"stdout\":\"" + std::string(size - frame.size(), 'x') + "\"}\n";
    };
    const std::string end = "{\"returncode\":0}\n";
    CHECK(hear({line(1000) + end}, 1000).end == "x0");
    CHECK(hear({line(1001) + end}, 1000).end == "c:bad");
    // Noticed before the newline comes.
    ndjson_decoder decoder(1000, secret());
    decoder.append(std::string(1001, 'x'));
    const auto event = decoder.next();
    REQUIRE(event);
    CHECK(end_of(*event) == "c:bad");
    CHECK(decoder.ended());
}

TEST_CASE("cloud utf8: broken parts become one U+FFFD each") {
    const std::string fffd = "\xef\xbf\xbd";
    CHECK(repair_utf8("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") ==
          "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    CHECK(repair_utf8("\x80") == fffd);
    CHECK(repair_utf8("\xc0\xaf") == fffd + fffd);            // overlong
    CHECK(repair_utf8("\xe0\x80\x80") == fffd + fffd + fffd); // overlong
    CHECK(repair_utf8("\xed\xa0\x80") == fffd + fffd + fffd); // a surrogate
    CHECK(repair_utf8("\xf4\x90\x80\x80") == fffd + fffd + fffd + fffd);
    CHECK(repair_utf8("\xf0\x9f\x98") == fffd); // cut at the end
    CHECK(repair_utf8("\xf0\x9f\x98z") == fffd + "z");
    CHECK(!is_utf8("\xf5\x80\x80\x80"));
    CHECK(is_utf8(std::string_view("\0", 1)));
    CHECK(utf8_floor("a\xe2\x82\xac", 3) == 1);
    CHECK(utf8_floor("a\xe2\x82\xac", 4) == 4);
    CHECK(utf8_floor("ab", 1) == 1);
}
