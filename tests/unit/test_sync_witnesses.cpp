// Which files commands are asked about.
#include "sync/witnesses.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace sandboxd::sync;

namespace {

void add(manifest& to, const std::string& path, file_kind kind, unsigned mode = 0644) {
    to.entries[path] = {kind, mode, {}, false, "d"};
}

std::set<std::string> told(witnesses& by, int times) {
    std::set<std::string> all;
    for (int i = 0; i < times; ++i) {
        for (std::string& each : by.next(4))
            all.insert(std::move(each));
    }
    return all;
}

} // namespace

TEST_CASE("sync witnesses: every tree has its turn, however large the others are") {
    manifest all;
    add(all, "/workspace/proj/src", file_kind::directory);
    for (int i = 0; i < 1000; ++i) {
        const std::string below = "/workspace/proj/src/" + std::to_string(i % 30);
        add(all, below, file_kind::directory);
        add(all, below + "/" + std::to_string(i), file_kind::file);
    }
    for (int i = 0; i < 6; ++i)
        add(all, "/workspace/r" + std::to_string(i) + "/f", file_kind::file);
    std::mt19937 chance(1);
    witnesses some(all, chance);
    const std::set<std::string> first = told(some, 2); // seven trees
    for (int i = 0; i < 6; ++i)
        CHECK(first.contains("/workspace/r" + std::to_string(i) + "/f"));
    CHECK(first.size() >= 7);
    // And so has what is in one of them.
    CHECK(told(some, 7 * 40).size() > 120);
}

TEST_CASE("sync witnesses: of few paths each is asked about once a command, and one that has told "
          "is not asked again") {
    manifest all;
    add(all, "/workspace/f", file_kind::file);
    add(all, "/workspace/" + std::string(2000, 'x'), file_kind::file);
    std::mt19937 chance(1);
    witnesses some(all, chance);
    CHECK(some.next(4) == std::vector<std::string>{"/workspace/f"});
    CHECK(some.next(4) == std::vector<std::string>{"/workspace/f"});
    some.dismiss("/workspace/f");
    CHECK(some.next(4).empty());
    CHECK_FALSE(some.nothing_pushed()); // it was, whatever is asked about
    CHECK(witnesses().next(4).empty());
    CHECK(witnesses().nothing_pushed());
}

TEST_CASE("sync witnesses: a tree without a file that can be read has its turn too") {
    manifest all;
    add(all, "/workspace/links", file_kind::directory);
    add(all, "/workspace/links/l", file_kind::link);
    add(all, "/workspace/empty", file_kind::directory);
    add(all, "/workspace/secrets/s", file_kind::file, 0);
    std::mt19937 chance(1);
    witnesses some(all, chance);
    CHECK(told(some, 4) == std::set<std::string>{"/workspace/links", "/workspace/links/l",
                                                 "/workspace/empty", "/workspace/secrets/s"});
    CHECK_FALSE(some.nothing_pushed());
}
