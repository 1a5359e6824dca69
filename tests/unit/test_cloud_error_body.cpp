// Every shape of an error answer, what it is taken for, and what must never come out of it.
#include "cloud/error_body.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::cloud;
using std::chrono::seconds;

namespace {

using strings = std::vector<std::string>;

const secret no_key;

failure of(int status, std::string_view body) {
    return failure_from_answer(status, body, std::nullopt, no_key);
}

} // namespace

TEST_CASE("cloud errors: each shape of body gives its message") {
    CHECK(of(400, R"({"error":"m"})").message == "m");
    CHECK(of(400, R"({"error":{"message":"m"}})").message == "m");
    CHECK(of(400, R"({"detail":"m"})").message == "m");
    CHECK(of(400, R"({"detail":{"error":"m"}})").message == "m");
    CHECK(of(422, R"({"detail":[{"loc":["body"],"msg":"a"},{"msg":"b"},7]})").message == "a; b");
    CHECK(of(400, R"({"message":"m"})").message == "m");
    CHECK(of(400, R"({"error":null,"detail":"m","more":[1]})").message == "m");
    CHECK(of(502, "upstream connect error\n").message == "upstream connect error");
    CHECK(of(502, "<html><title>502 Bad Gateway</title></html>").message ==
          "HTTP 502 with a page that is not the API's");
    CHECK(of(500, "").message == "HTTP 500 without a message");
    CHECK(of(500, " \r\n").message == "HTTP 500 without a message");
    for (const std::string& other :
         strings{"{", "[]", "7", "null", "\"text\"", R"({"error":5})", R"({"error":""})",
                 R"({"detail":{}})", R"({"detail":[]})", "{\"error\":\"\xff\"}"}) {
        CAPTURE(other);
        CHECK(!of(500, other).message.empty());
        CHECK(of(500, other).kind == failure_kind::server_error);
    }
}

TEST_CASE("cloud errors: the status decides the kind") {
    const char* body = R"({"detail":"m"})";
    CHECK(of(401, body).kind == failure_kind::unauthorized);
    CHECK(of(403, body).kind == failure_kind::forbidden);
    CHECK(of(409, body).kind == failure_kind::conflict);
    CHECK(of(413, body).kind == failure_kind::too_large);
    CHECK(of(400, body).kind == failure_kind::bad_request);
    CHECK(of(408, body).kind == failure_kind::bad_request);
    CHECK(of(422, body).kind == failure_kind::bad_request);
    CHECK(of(500, body).kind == failure_kind::server_error);
    CHECK(of(502, body).kind == failure_kind::server_error);
    CHECK(of(503, body).kind == failure_kind::no_capacity);
    CHECK(of(504, body).kind == failure_kind::server_error);
    CHECK(of(302, "").kind == failure_kind::bad_answer);
    CHECK(of(302, "").message.find("base URL") != std::string::npos);
    CHECK(of(600, "").kind == failure_kind::bad_answer);
    CHECK(of(409, body).status == 409);
    CHECK(!of(409, body).effect_unknown());
    CHECK(!of(429, body).effect_unknown());
    CHECK(of(503, body).effect_unknown());
    CHECK(of(302, body).effect_unknown());
}

TEST_CASE("cloud errors: a 404 proves something only in the API's own shapes") {
    for (const std::string& own : strings{R"({"error":"m"})", R"({"error":{"message":"m"}})",
                                          R"({"detail":"m"})", R"({"detail":{"error":"m"}})"}) {
        CAPTURE(own);
        CHECK(of(404, own).kind == failure_kind::not_found);
    }
    for (const std::string& other :
         strings{"", "not found", "<html>404</html>", R"({"message":"no Route matched"})", "{}",
                 R"({"error":)", R"({"detail":[{"msg":"m"}]})", R"({"error":""})", "[]"}) {
        CAPTURE(other);
        CHECK(of(404, other).kind == failure_kind::not_found_unproven);
    }
}

TEST_CASE("cloud errors: the cap is told from a rate limit") {
    CHECK(of(429, R"({"detail":{"error":"You have reached the maximum of 5 active sandboxes"}})")
              .kind == failure_kind::cap_reached);
    CHECK(of(429, R"({"error":"Maximum number of sandboxes reached"})").kind ==
          failure_kind::cap_reached);
    CHECK(of(429, R"({"error":"sandbox quota exceeded"})").kind == failure_kind::cap_reached);
    CHECK(of(429, R"({"error":"rate limit exceeded for sandbox calls"})").kind ==
          failure_kind::rate_limited);
    CHECK(of(429, R"({"error":"too many requests"})").kind == failure_kind::rate_limited);
    CHECK(of(429, "<html>429</html>").kind == failure_kind::rate_limited);
    CHECK(of(429, "").kind == failure_kind::rate_limited);
    CHECK(of(403, R"({"error":"maximum of 5 active sandboxes"})").kind == failure_kind::forbidden);
}

TEST_CASE("cloud errors: a message is short, on one line, and valid text") {
    const std::string longest = of(500, "{\"error\":\"" + std::string(5000, 'x') + "\"}").message;
    CHECK(longest.size() == max_message);
    CHECK(longest.ends_with("..."));
    for (std::size_t lead = 0; lead < 4; ++lead) {
        std::string text(lead, 'x');
        while (text.size() < 2000)
            text += "\xf0\x9f\x98\x80";
        const std::string cut = of(500, "{\"error\":\"" + text + "\"}").message;
        CHECK(cut.size() <= max_message);
        CHECK((cut.size() - 3 - lead) % 4 == 0);
    }
    CHECK(of(500, R"({"error":" a\r\n\tb\u0000\u001b[31mc \u007f "})").message == "a b [31mc");
    CHECK(clean_message("a\xff"
                        "b",
                        no_key) == "a\xef\xbf\xbd"
                                   "b");
}

TEST_CASE("cloud errors: neither the key nor a header comes out") {
    const secret key("di-canary-0123456789");
    const auto told = [&key](std::string_view body) {
        return failure_from_answer(400, body, std::nullopt, key).message;
    };
    CHECK(told(R"({"error":"bad key di-canary-0123456789, really di-canary-0123456789"})") ==
          "bad key ***, really ***");
    CHECK(told(R"({"error":"got Authorization: Bearer other-account-key.x/y+z="})") ==
          "got Authorization: Bearer ***");
    CHECK(told(R"({"error":"a bearer token is missing"})") == "a bearer token is missing");
    CHECK(told("di-canary-0123456789") == "***");
    // Also where the text is cut.
    for (std::size_t lead = 16 * max_message - 30; lead < 16 * max_message + 5; ++lead) {
        const std::string body =
            "{\"error\":\"" + std::string(lead, ' ') + "di-canary-0123456789\"}";
        CHECK(told(body).find("canary") == std::string::npos);
        CHECK(told(body).find("di-") == std::string::npos);
    }
}

TEST_CASE("cloud errors: Retry-After in seconds and as a date") {
    using clock = std::chrono::system_clock;
    const auto now = parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT");
    REQUIRE(now);
    CHECK(clock::to_time_t(*now) == 784111777);
    CHECK(parse_retry_after("2", *now) == seconds(2));
    CHECK(parse_retry_after("0", *now) == seconds(0));
    CHECK(parse_retry_after("7200", *now) == seconds(3600));
    CHECK(parse_retry_after("99999999999999999999999", *now) == seconds(3600));
    CHECK(parse_retry_after("Sun, 06 Nov 1994 08:50:07 GMT", *now) == seconds(30));
    CHECK(parse_retry_after("Sun, 06 Nov 1994 08:49:00 GMT", *now) == seconds(0));
    CHECK(parse_retry_after("Mon, 07 Nov 1994 08:49:00 GMT", *now) == seconds(3600));
    for (const std::string& bad :
         strings{"", "-1", "1.5", "soon", "2 ", "Sun, 06 Now 1994 08:49:37 GMT",
                 "Sun, 31 Feb 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:49:37 GMT",
                 "Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET"}) {
        CAPTURE(bad);
        CHECK(!parse_retry_after(bad, *now));
    }
    CHECK(failure_from_answer(429, "", seconds(7), no_key).retry_after == seconds(7));
}
