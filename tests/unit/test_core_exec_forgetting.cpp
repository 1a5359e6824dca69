// Which commands of before are forgotten first.
#include "core/exec_forgetting.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::core;

namespace {

constexpr std::int64_t day = 86'400'000;

exec_record over(const char* id, std::int64_t at, bool forgotten) {
    exec_record record;
    record.exec_id = id;
    record.phase = exec_phase::ended;
    record.at = at;
    record.forgotten = forgotten;
    return record;
}

using ids = std::set<std::string>;

} // namespace

TEST_CASE("exec forgetting: what its client has got, the first that ended, and then the others") {
    // In the order in which they were started: the first one ran for long.
    const exec_record all[] = {over("long", 90, true), over("untold", 10, false),
                               over("short", 50, true), over("also untold", 60, false)};
    const auto first = [&all](std::size_t count, std::int64_t now = 100) {
        std::vector<const exec_record*> each;
        for (const exec_record& record : all) {
            each.push_back(&record);
        }
        return forgotten_first(each, count, now);
    };
    CHECK(first(0).empty());
    CHECK(first(1) == ids{"short"});
    CHECK(first(2) == ids{"short", "long"});
    CHECK(first(3) == ids{"short", "long", "untold"});
    CHECK(first(9).size() == 4);
    // After a day nobody is expected any more.
    CHECK(first(1, 10 + day) == ids{"untold"});
    CHECK(first(2, 10 + day) == ids{"untold", "short"});
}
