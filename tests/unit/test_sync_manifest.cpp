// What a manifest believes, and what it forgets.
#include "sync/manifest.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::sync;

namespace {

constexpr std::int64_t second = 1'000'000'000;

manifest_entry file_entry() {
    return {file_kind::file, 0644, {10, 100, 200, 7}, false, "d1"};
}

local_entry local_file() {
    return {"/h", "/workspace/a/f", file_kind::file, 0644, {10, 100, 200, 7}, {}};
}

manifest sample() {
    manifest all;
    all.sandbox = "https://x abc sb_1";
    all.entries = {{"/workspace/a/f", file_entry()},
                   {"/workspace/a/d", {file_kind::directory, 0755, {}, false, ""}},
                   {"/workspace/a/d/x y\n%", file_entry()},
                   {"/workspace/a/d-", file_entry()},
                   {"/workspace/a/gone", {file_kind::file, 0600, {1, 2, 3, 4}, false, "d3", true}},
                   {"/workspace/\xff", {file_kind::link, 0777, {1, 2, 3, 4}, true, "d2"}}};
    return all;
}

} // namespace

TEST_CASE("sync manifest: what is the same in all that can be seen is unchanged, else the content "
          "decides") {
    const manifest_entry known = file_entry();
    CHECK(compare(nullptr, local_file()) == verdict::changed);
    CHECK(compare(&known, local_file()) == verdict::unchanged);
    local_entry now = local_file();
    now.mode = 0600;
    CHECK(compare(&known, now) == verdict::changed);
    now = local_file();
    now.print.size = 11;
    CHECK(compare(&known, now) == verdict::changed);
    for (auto* field : {&now.print.mtime, &now.print.ctime}) {
        now.print = known.print;
        ++*field;
        CHECK(compare(&known, now) == verdict::look);
    }
    now.print = known.print;
    ++now.print.inode;
    CHECK(compare(&known, now) == verdict::look);
    now = local_file();
    now.kind = file_kind::link;
    CHECK(compare(&known, now) == verdict::changed);
    manifest_entry doubtful = known;
    doubtful.doubtful = true;
    CHECK(compare(&doubtful, local_file()) == verdict::look);
    manifest_entry unsettled = known;
    unsettled.unsettled = true;
    CHECK(compare(&unsettled, local_file()) == verdict::changed);
}

TEST_CASE("sync manifest: a file that has just changed may change again unseen") {
    const std::int64_t now = 1000 * second + 500'000'000;
    CHECK(is_doubtful({1, now - 1'000'000, now - 1'000'000, 1}, now));
    CHECK(!is_doubtful({1, now - 30'000'000, now - 30'000'000, 1}, now));
    CHECK(is_doubtful({1, now - 30'000'000, now - 1'000'000, 1}, now)); // by its ctime
    CHECK(is_doubtful({1, 999 * second, 999 * second, 1}, now));        // times in whole seconds
    CHECK(!is_doubtful({1, 998 * second, 998 * second, 1}, now));
}

TEST_CASE("sync manifest: written and read again it is the same, and half of it is none") {
    const manifest all = sample();
    const std::string text = format_manifest(all);
    const auto again = parse_manifest(text);
    REQUIRE(again);
    CHECK(again->sandbox == all.sandbox);
    CHECK(again->entries == all.entries);
    for (std::size_t size = 0; size < text.size(); ++size)
        CHECK(!parse_manifest(text.substr(0, size)));
    CHECK(!parse_manifest(text + "f 644"));
    const std::string head = text.substr(0, text.find("f 600"));
    CHECK(parse_manifest(head + "end\n"));
    for (const std::string bad :
         {"f 644 1 1 1 1 = d\n", "f x 1 1 1 1 = d p\n", "f 644 1 1 1 1 = d p q\n",
          "f 644 1 1 1 1 = d %4\n", "f 644 1 1 1 1 = d %zz\n", "z\n", "end\n"}) {
        CAPTURE(bad);
        CHECK(!parse_manifest(head + bad + "end\n"));
    }
}

TEST_CASE("sync manifest: forgetting takes what is below, and nothing that only looks like it") {
    manifest all = sample();
    all.forget("/workspace/a/d");
    CHECK(all.entries.size() == 4);
    CHECK(all.find("/workspace/a/d-") != nullptr);
    CHECK(all.find("/workspace/a/d/x y\n%") == nullptr);
    all.forget("/workspace/a");
    CHECK(all.entries.size() == 1);
    all.forget("/workspace");
    CHECK(all.entries.empty());
}

TEST_CASE("sync manifest: the contents below a path are those of settled files") {
    manifest all = sample();
    for (const char* name : {"b", "b/f", "b/g", "b/l", "b-"}) {
        all.entries[std::string("/workspace/") + name].digest = std::string("of ") + name;
    }
    all.entries["/workspace/b/g"].unsettled = true;
    all.entries["/workspace/b/l"].kind = file_kind::link;
    const std::map<std::string, std::string> expected{{"/workspace/b/f", "of b/f"}};
    CHECK(all.contents_below("/workspace/b") == expected);
    CHECK(all.contents_below("/workspace/none").empty());
}

TEST_CASE("sync manifest: what is about to be touched is unsettled, with all that is below it") {
    manifest all = sample();
    CHECK(!all.unsettle("/workspace/a/nothing"));
    CHECK(all.unsettle("/workspace/a/d"));
    CHECK(all.find("/workspace/a/d")->unsettled);
    CHECK(all.find("/workspace/a/d/x y\n%")->unsettled);
    CHECK(!all.find("/workspace/a/d-")->unsettled);
}
