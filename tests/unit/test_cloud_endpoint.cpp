// The base URL's policy, and the targets of requests.
#include "cloud/endpoint.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace sandboxd::cloud;

namespace {

using strings = std::vector<std::string>;

} // namespace

TEST_CASE("cloud endpoint: a base URL is taken apart") {
    const auto plain = parse_endpoint("https://api.deepinfra.com");
    REQUIRE(plain.has_value());
    CHECK(plain->tls);
    CHECK(plain->host == "api.deepinfra.com");
    CHECK(plain->port == 443);
    CHECK(plain->prefix.empty());
    CHECK(plain->host_header == "api.deepinfra.com");

    const auto full = parse_endpoint("HTTPS://Example.COM.:8443/some/pre%20fix//");
    REQUIRE(full.has_value());
    CHECK(full->host == "example.com");
    CHECK(full->port == 8443);
    CHECK(full->prefix == "/some/pre%20fix");
    CHECK(full->host_header == "example.com:8443");

    const auto v6 = parse_endpoint("https://[2001:db8::1]/");
    REQUIRE(v6.has_value());
    CHECK(v6->host == "2001:db8::1");
    CHECK(v6->host_header == "[2001:db8::1]");
    CHECK(v6->prefix.empty());
}

TEST_CASE("cloud endpoint: plain http is for loopback only") {
    for (const std::string& good :
         strings{"http://127.0.0.1", "http://127.9.8.7:1/x", "http://[::1]:80",
                 "http://localhost:8080", "http://LOCALHOST", "http://[::ffff:127.0.0.1]"}) {
        CAPTURE(good);
        CHECK(parse_endpoint(good).has_value());
    }
    for (const std::string& bad :
         strings{"http://api.deepinfra.com", "http://10.0.0.1", "http://0.0.0.0",
                 "http://128.0.0.1", "http://[::2]", "http://localhost.example.com",
                 "http://127.0.0.1.example.com", "http://2130706433", "http://[::ffff:10.0.0.1]"}) {
        CAPTURE(bad);
        const auto parsed = parse_endpoint(bad);
        REQUIRE(!parsed.has_value());
        CHECK(parsed.error().find("loopback") != std::string::npos);
    }
}

TEST_CASE("cloud endpoint: what is not a base URL is refused, and what it held is not repeated") {
    for (const std::string& bad : strings{
             "", "api.deepinfra.com", "https://", "https:///x", "ftp://example.com", "unix:/run/x",
             "https://user:hunter2@example.com", "https://example.com/?key=hunter2",
             "https://example.com/#hunter2", "https://exa mple.com", "https://example.com:0",
             "https://example.com:65536", "https://example.com:x", "https://ex%0d%0aample.com",
             "https://[v1.x]", "https://example.com/\r\nX-Evil: 1"}) {
        CAPTURE(bad);
        const auto parsed = parse_endpoint(bad);
        REQUIRE(!parsed.has_value());
        CHECK(parsed.error().find("hunter2") == std::string::npos);
        CHECK(!parsed.error().empty());
    }
}

TEST_CASE("cloud endpoint: an id is one path segment") {
    CHECK(encode_segment("sb_1-a.b~c") == "sb_1-a.b~c");
    CHECK(encode_segment("a/b?c#d e%2F") == "a%2Fb%3Fc%23d%20e%252F");
    CHECK(encode_segment("\r\n") == "%0D%0A");
    CHECK(encode_segment("\xc3\xa9") == "%C3%A9");
    CHECK(encode_segment("...") == "...");
    CHECK(!encode_segment(""));
    CHECK(!encode_segment("."));
    CHECK(!encode_segment(".."));
    CHECK(encode_query_value("/workspace/a b&c=d+e") == "/workspace/a%20b%26c%3Dd%2Be");
}

TEST_CASE("cloud endpoint: the next page is followed on the same origin only") {
    const endpoint at = *parse_endpoint("https://example.com:8443/pre");
    const std::string now = "/pre/v1/sandboxes?cursor=1";
    CHECK(resolve_next(at, now, "?cursor=2") == "/pre/v1/sandboxes?cursor=2");
    CHECK(resolve_next(at, now, "/v1/sandboxes?cursor=2") == "/v1/sandboxes?cursor=2");
    CHECK(resolve_next(at, now, "https://example.com:8443/x?y=z") == "/x?y=z");
    CHECK(resolve_next(at, now, "https://EXAMPLE.com:8443/x") == "/x");
    for (const std::string& bad : strings{
             "", "https://example.com/x", "http://example.com:8443/x", "https://evil.com:8443/x",
             "//evil.com/x", "https://user@example.com:8443/x", "ftp://x", "a b",
             "https://example.com:8443@evil.com/x", "https://example.com:8443.evil.com/x"}) {
        CAPTURE(bad);
        CHECK(!resolve_next(at, now, bad));
    }
}
