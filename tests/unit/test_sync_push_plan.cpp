// What of a push travels together, and where it turns out to be.
#include "sync/push_plan.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

using namespace sandboxd::sync;

namespace {

const std::atomic<bool> never{false};

local_entry file(const std::string& name, std::uint64_t size) {
    local_entry entry;
    entry.host = "/host/" + name;
    entry.remote = "/workspace/" + name;
    entry.kind = file_kind::file;
    entry.print.size = size;
    return entry;
}

push_plan plan_of(scanned found) {
    push_plan plan({}, never);
    plan.found(std::move(found));
    plan.begin({});
    plan.select();
    return plan;
}

// A file is put to /workspace/out, where a directory with two files was pushed.
push_plan put_over_a_pushed_directory() {
    push_plan plan({.force = false, .remember = false}, never);
    scanned found;
    found.entries.push_back(file("out", 1));
    plan.found(std::move(found));
    manifest remembered;
    remembered.entries["/workspace/out"] = {file_kind::directory, 0755, {}, false, ""};
    remembered.entries["/workspace/out/f"] = {file_kind::file, 0644, {}, false, "d"};
    remembered.entries["/workspace/out/edited"] = {file_kind::file, 0644, {}, false, "e"};
    plan.begin(std::move(remembered));
    plan.select();
    return plan;
}

} // namespace

TEST_CASE(
    "sync push_plan: a stretch ends at its bytes or at its entries, and all of them are all") {
    scanned found;
    for (int i = 0; i < 100; ++i)
        found.entries.push_back(file(std::to_string(100 + i), i < 50 ? 10 : 0));
    const push_plan plan = plan_of(std::move(found));
    const auto by_bytes = plan.stretch_from(0, 95, 1000);
    CHECK(by_bytes.size == 10);
    CHECK(plan.content_of(by_bytes) == 100);
    CHECK(plan.stretch_from(50, 1, 20).size == 20); // empty files are members too
    CHECK(plan.stretch_from(95, 1, 20).size == 5);
    CHECK(plan.stretch_from(100, 1, 20).size == 0);
    std::size_t end = 0;
    for (auto next = plan.stretch_from(0, 200, 7); next.size > 0;
         next = plan.stretch_from(end, 200, 7)) {
        CHECK(next.begin == end);
        end += next.size;
    }
    CHECK(end == 100);
}

TEST_CASE("sync push_plan: a file that went into a directory is noted where it is") {
    push_plan plan = put_over_a_pushed_directory();
    plan.unsettle("f");
    const auto before = plan.remembered().entries;
    CHECK(before.at("/workspace/out/f").unsettled);
    CHECK_FALSE(before.at("/workspace/out").unsettled);
    CHECK_FALSE(before.at("/workspace/out/edited").unsettled);
    plan.redirect("/workspace/out/f");
    sent_member sent{};
    CHECK_FALSE(plan.note({0, 1}, {sent}, {}));
    CHECK(plan.placed().contains("/workspace/out/f"));
    // The directory is as it was pushed; of the file that is not so any more.
    CHECK(plan.remembered().entries.contains("/workspace/out"));
    CHECK(plan.remembered().entries.contains("/workspace/out/edited"));
    CHECK_FALSE(plan.remembered().entries.contains("/workspace/out/f"));
}

TEST_CASE("sync push_plan: of a directory that a file took the place of nothing is remembered") {
    push_plan plan = put_over_a_pushed_directory();
    plan.unsettle("f");
    CHECK_FALSE(plan.note({0, 1}, {sent_member{}}, {}));
    CHECK(plan.remembered().entries.empty());
}
