// What the helper is asked, and what is believed of its answers.
#include "sync/helper.hpp"
#include "sync/pace.hpp"

#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>

using namespace sandboxd::sync;

namespace {

json::object object(const std::string& text) {
    const auto parsed = parse_answer(text);
    REQUIRE(parsed);
    return *parsed;
}

} // namespace

TEST_CASE("sync helper: any bytes travel as characters and come back") {
    std::string all;
    for (int byte = 1; byte < 256; ++byte)
        all += static_cast<char>(byte);
    const json::string text = to_characters(all);
    CHECK(from_characters({text.data(), text.size()}) == all);
    CHECK(to_characters("caf\xe9") == "caf\u00e9");
    CHECK(!from_characters("\u20ac")); // no byte
    CHECK(!from_characters("\xc3"));
}

TEST_CASE("sync helper: no path is ever part of a program") {
    const std::string path = "/workspace/$(touch x)\xff";
    const std::string asked = json::serialize(paths_arguments("op", {"op"}, {path}));
    const auto argv = helper_call("delete", asked);
    CHECK(argv[0] == "python3");
    CHECK(argv[4].starts_with(helper_file("helper")));
    CHECK(argv[4].find("touch x") == std::string::npos);
    CHECK(argv.back() == asked);
    CHECK(argv[4].size() < 131072);
}

TEST_CASE("sync helper: the younger of two operations has the greater name") {
    const std::string run(2 * run_bytes, 'a');
    CHECK(name_operation(run, 1) == run + "00000001");
    CHECK(name_operation(run, 9) < name_operation(run, 10));
    CHECK(name_operation(run, 0xfffffffe) < name_operation(run, 0xffffffff));
    // As the helper takes them apart.
    CHECK(helper_file("helper").find("\nRUN = " + std::to_string(run.size()) + " ") !=
          std::string_view::npos);
}

TEST_CASE("sync helper: the last line is the answer, if it is an object") {
    CHECK(parse_answer("noise\n{\"a\":1}\n")->at("a") == 1);
    CHECK(!parse_answer(""));
    CHECK(!parse_answer("{\"a\":1}\nnoise"));
    CHECK(!parse_answer("[1]"));
    const auto error = error_of(object(R"({"error":"no_space: \u001b[1m full"})"));
    REQUIRE(error);
    CHECK(error->name == "no_space");
    CHECK(error->text == "?[1m full");
    CHECK(!error_of(object("{}")));
}

TEST_CASE("sync helper: numbers that do not fit what was asked are no answer") {
    CHECK(parse_unpack(object(R"({"gone":[0],"failed":[[1,"in_the_way","x"]]})"), 2, 1)
              ->failed[0]
              .in_the_way);
    for (const char* bad :
         {R"({"gone":[1],"failed":[]})", R"({"gone":[],"failed":[[2,"a","b"]]})", R"({"gone":[]})",
          R"({"gone":[-1],"failed":[]})", R"({"gone":[],"failed":[[0,"a"]]})",
          R"({"gone":{},"failed":[]})", R"({"gone":[],"failed":[0]})"}) {
        CAPTURE(bad);
        CHECK(!parse_unpack(object(bad), 2, 1));
    }
    CHECK(parse_look(object(R"({"gone":[1]})"), 2) == std::vector<std::size_t>{1});
    CHECK(!parse_look(object(R"({"gone":[2]})"), 2));
    CHECK(parse_sweep(object(R"({"free":5})")) == 5);
    CHECK(!parse_sweep(object(R"({"free":-5})")));
    const std::string good =
        R"({"kind":"file","bytes":5,"unpacked":3,"members":4,"sizes":[100,20],"drop":[3],"skipped":[["/workspace/caf\u00e9","special","t"]],"skipped_more":0})";
    const auto packed = parse_pack(object(good), 100);
    REQUIRE(packed);
    CHECK(packed->sizes == std::vector<std::uint64_t>{100, 20});
    CHECK(packed->skipped[0].remote == "/workspace/caf\xe9");
    CHECK(packed->members == 4);
    CHECK(packed->unpacked == 3);
    std::string fewer = good;
    fewer.replace(fewer.find("\"members\":4"), 11, "\"members\":3");
    CHECK(!parse_pack(object(fewer), 100)); // there is no fourth one to be dropped
    CHECK(!parse_pack(object(good), 99));   // a part that is larger than it may be
    std::string more = good;
    more.replace(more.find("[100,20]"), 8, "[1000000,1000000]");
    CHECK(!parse_pack(object(more), 1'000'000)); // than such content can take
    more.replace(more.find("\"bytes\":5"), 9, "\"bytes\":2000000");
    CHECK(parse_pack(object(more), 1'000'000));
    CHECK(!parse_delete(object(R"({"deleted":1,"missing":-1,"failed":[]})"), 2));
    CHECK(parse_delete(object(R"({"deleted":1,"missing":1,"failed":[]})"), 2)->deleted == 1);
}

TEST_CASE("sync pace: parts are a few seconds long, and compressed where the line is the slower") {
    pace line;
    CHECK(!line.known());
    CHECK(line.part_size() == 16U << 20);
    line.took(1000, 0.5); // tells of latency only
    CHECK(!line.known());
    line.took(2'000'000, 1);
    CHECK(line.part_size() == 8'000'000);
    for (int i = 0; i < 20; ++i)
        line.took(64U << 20, 0.05);
    CHECK(line.part_size() == 16U << 20);
    for (int i = 0; i < 40; ++i)
        line.took(1U << 20, 10);
    CHECK(line.part_size() == 4U << 20);

    CHECK(compression_pays(0.3, 10e6, 100e6));   // text over a usual line
    CHECK(!compression_pays(1.0, 10e6, 100e6));  // what is compressed already
    CHECK(!compression_pays(0.3, 500e6, 100e6)); // a line quicker than the compressor
    CHECK(compression_pays(0.3, 80e6, 100e6));
}
