// The JSON of requests and answers, and how a listing goes on.
#include "cloud/exchange.hpp"
#include "cloud/wire.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace sandboxd::cloud;
using std::chrono::seconds;

namespace {

using strings = std::vector<std::string>;

} // namespace

TEST_CASE("cloud wire: requests are written as the API wants them") {
    CHECK(exec_body({"echo", "a \"b\"\n\x01", "\xe2\x82\xac", ""}, seconds(3600)) ==
          "{\"command\":[\"echo\",\"a "
          "\\\"b\\\"\\n\\u0001\",\"\xe2\x82\xac\",\"\"],\"timeout_seconds\":3600}");
    CHECK(create_body({"", {}, seconds(0)}) ==
          R"({"image":"","plan":"","tags":{},"timeout_seconds":0})");
    CHECK(create_body({"large", {{"a", "1"}, {"b", "2"}}, seconds(60)}) ==
          R"({"image":"","plan":"large","tags":{"a":"1","b":"2"},"timeout_seconds":60})");
}

TEST_CASE("cloud wire: a sandbox is read tolerantly") {
    const auto full =
        parse_sandbox(R"({"sandbox_id":"sb_1","plan":"medium","image":"x","state":"running",
        "tags":{"a":"b","n":5},"created_at":1700000000,"provider":"p","new":{"x":[1]}})");
    REQUIRE(full.has_value());
    CHECK(full->id == "sb_1");
    CHECK(full->plan == "medium");
    CHECK(full->state == sandbox_state::running);
    CHECK(full->tags == std::map<std::string, std::string>{{"a", "b"}});
    CHECK(full->created_at == 1700000000);

    const auto bare = parse_sandbox(R"({"sandbox_id":"sb_1"})");
    REQUIRE(bare.has_value());
    CHECK(bare->state == sandbox_state::unknown);
    CHECK(bare->created_at == 0);

    const auto odd = parse_sandbox(
        R"({"sandbox_id":"sb_1","plan":null,"state":7,"tags":["a"],"created_at":1700000000.75})");
    REQUIRE(odd.has_value());
    CHECK(odd->plan.empty());
    CHECK(odd->created_at == 1700000000);
    CHECK(parse_sandbox(R"({"sandbox_id":"a","created_at":"soon"})")->created_at == 0);
    CHECK(parse_sandbox(R"({"sandbox_id":"a","created_at":1e300})")->created_at == 0);

    for (const std::string& bad :
         strings{"", "{}", "[]", "{\"sandbox_id\":5}", "{\"sandbox_id\":\"\"}", "<html>",
                 "{\"sandbox_id\":\"a\"} x"}) {
        CAPTURE(bad);
        REQUIRE(!parse_sandbox(bad).has_value());
        CHECK(parse_sandbox(bad).error().kind == failure_kind::bad_answer);
    }
    for (const std::string& name :
         strings{"creating", "starting", "running", "stopping", "stopped", "failed", "deleted"}) {
        CHECK(parse_state(name) != sandbox_state::unknown);
    }
    CHECK(parse_state("paused") == sandbox_state::unknown);
}

TEST_CASE("cloud wire: the other answers") {
    CHECK(*parse_created(R"({"sandbox_id":"sb_9"})") == "sb_9");
    CHECK(!parse_created("{}").has_value());
    CHECK(!parse_created(R"({"sandbox_id":null})").has_value());

    const auto plans =
        parse_catalog(R"([{"id":"medium","vcpu":2,"ram_gb":4,"disk_gb":10.5,"price_per_hour":0.05},
                                         {"vcpu":1},"x",{"id":"odd","vcpu":"2","price_per_hour":-1}])");
    REQUIRE(plans.has_value());
    REQUIRE(plans->size() == 2);
    CHECK(plans->at(0).ram_gb == 4);
    CHECK(plans->at(0).disk_gb == 10.5);
    CHECK(plans->at(1).id == "odd");
    CHECK(!plans->at(1).vcpu);
    CHECK(!plans->at(1).ram_gb);
    CHECK(!plans->at(1).price_per_hour); // unknown is not free
    CHECK(!parse_catalog("{}").has_value());

    CHECK(parse_nothing("{}").has_value());
    CHECK(parse_nothing("").has_value());
    CHECK(parse_nothing("\r\n").has_value());
    CHECK(parse_nothing("null").has_value());
    CHECK(parse_nothing(R"({"state":"stopping"})").has_value());
    CHECK(!parse_nothing("<html>log in</html>").has_value());
    CHECK(!parse_nothing("[]").has_value());
}

TEST_CASE("cloud wire: a listing, whole or in pages") {
    const auto plain = parse_sandbox_page(R"([{"sandbox_id":"a"},{"sandbox_id":"b"}])", "");
    REQUIRE(plain.has_value());
    CHECK(plain->sandboxes.size() == 2);
    CHECK(plain->next.what == next_page::kind::none);
    CHECK(parse_sandbox_page("[]", "")->sandboxes.empty());

    const auto linked =
        parse_sandbox_page("[]", "<https://x/?p=1>; rel=prev, </v1/sandboxes?p=3>; rel=\"next\"");
    REQUIRE(linked.has_value());
    CHECK(linked->next.what == next_page::kind::reference);
    CHECK(linked->next.value == "/v1/sandboxes?p=3");

    for (const std::string& list : strings{"sandboxes", "items", "data"}) {
        const std::string begin = "{\"" + list + "\":[{\"sandbox_id\":\"a\"}]";
        CHECK(parse_sandbox_page(begin + "}", "")->next.what == next_page::kind::none);
        CHECK(parse_sandbox_page(begin + ",\"next\":null,\"has_more\":false,\"total\":1}", "")
                  ->total == 1);

        const auto url = parse_sandbox_page(begin + ",\"next\":\"https://x/y?z\"}", "");
        CHECK(url->next.what == next_page::kind::reference);
        CHECK(url->next.value == "https://x/y?z");
        const auto opaque = parse_sandbox_page(begin + ",\"next\":\"abc\"}", "");
        CHECK(opaque->next.what == next_page::kind::cursor);
        CHECK(opaque->next.parameter == "cursor");
        const auto cursor = parse_sandbox_page(begin + ",\"next_cursor\":\"/a b\"}", "");
        CHECK(cursor->next.what == next_page::kind::cursor);
        CHECK(cursor->next.value == "/a b");
        CHECK(cursor->next.parameter == "cursor");
        const auto token = parse_sandbox_page(begin + ",\"next_page_token\":\"t\"}", "");
        CHECK(token->next.parameter == "page_token");
        CHECK(parse_sandbox_page(begin + ",\"next_cursor\":17}", "")->next.value == "17");
        CHECK(parse_sandbox_page(begin + ",\"next_page_token\":\"\"}", "")->next.what ==
              next_page::kind::none);

        // More that cannot be reached is not a complete listing.
        CHECK(!parse_sandbox_page(begin + ",\"has_more\":true}", "").has_value());
        CHECK(!parse_sandbox_page(begin + ",\"next\":{\"a\":1}}", "").has_value());
    }
    for (const std::string& bad : strings{"", "{}", "null", "5", "{\"sandboxes\":{}}", "[5]",
                                          "[{}]", "[{\"sandbox_id\":\"a\"},null]", "<html>"}) {
        CAPTURE(bad);
        REQUIRE(!parse_sandbox_page(bad, "").has_value());
        CHECK(parse_sandbox_page(bad, "").error().kind == failure_kind::bad_answer);
    }
}

TEST_CASE("cloud wire: Link and Keep-Alive fields") {
    CHECK(next_link("<a>; rel=next") == "a");
    CHECK(next_link("<a,b;c>;title=\"x, <y>; rel=next\";REL=\"NEXT\"") == "a,b;c");
    CHECK(next_link("<a>; rel=prev , <b>;rel=next") == "b");
    for (const std::string& none :
         strings{"", "<a>", "<a>; rel=nextish", "rel=next", "<a; rel=next", "<a>; rel=\"", "<a>;;;",
                 ",,,", "<>;rel"}) {
        CAPTURE(none);
        CHECK(next_link(none).empty());
    }
    CHECK(parse_keep_alive("timeout=5") == seconds(5));
    CHECK(parse_keep_alive("max=100, Timeout=7") == seconds(7));
    CHECK(parse_keep_alive("timeout=0") == seconds(0));
    CHECK(!parse_keep_alive(""));
    CHECK(!parse_keep_alive("max=5"));
    CHECK(!parse_keep_alive("timeout=soon"));
    CHECK(!parse_keep_alive("timeout"));
}
