// The queue for places: who is next, who makes room, what a platform that refuses means.
#include "core/slot_queue.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

using namespace sandboxd;
using namespace sandboxd::core;
using ms = milliseconds;

namespace {

slot_limits three() {
    slot_limits limits;
    limits.max_active = 3;
    limits.evict_min_idle = ms(1'000);
    limits.timeout = ms(10'000);
    return limits;
}

sandbox_key key(std::string task) {
    return {"p", std::move(task)};
}

slot_user busy(std::string task) {
    slot_user user{key(std::move(task))};
    return user;
}

slot_user idle(std::string task, ms for_so_long, background work = background::none) {
    slot_user user{key(std::move(task))};
    user.evictable = true;
    user.idle_for = for_so_long;
    user.work = work;
    return user;
}

std::vector<slot_user> three_busy() {
    return {busy("a"), busy("b"), busy("c")};
}

cloud::failure full(std::optional<ms> retry_after = std::nullopt) {
    return {cloud::failure_kind::cap_reached, 429, "full", retry_after};
}

using tickets = std::vector<slot_queue::ticket>;

} // namespace

TEST_CASE("slots: free places are given in the order of coming, and not twice") {
    slot_queue queue(three());
    const auto first = queue.enter(key("1"), ms(0));
    const auto second = queue.enter(key("2"), ms(0));
    const auto third = queue.enter(key("3"), ms(0));
    CHECK(queue.place(third) == 3);
    CHECK(queue.decide(ms(0), {busy("a")}).granted == tickets{first, second});
    CHECK(queue.place(first) == 0);
    CHECK(queue.place(third) == 1);
    CHECK(queue.decide(ms(1), {busy("a")}).granted.empty()); // both are on their way
    // Seen as sandboxes, they still take their places.
    CHECK(queue.decide(ms(2), {busy("a"), busy("1"), busy("2")}).granted.empty());
    queue.on_taken(first);
    queue.leave(second); // it came to nothing
    CHECK(queue.decide(ms(3), {busy("a"), busy("1")}).granted == tickets{third});
    CHECK(queue.waiting() == 0);
}

TEST_CASE("slots: who leaves is not served") {
    slot_queue queue(three());
    const auto first = queue.enter(key("1"), ms(0));
    const auto second = queue.enter(key("2"), ms(0));
    CHECK(queue.decide(ms(0), three_busy()).granted.empty());
    queue.leave(first);
    queue.leave(first);
    CHECK(queue.place(second) == 1);
    CHECK(queue.decide(ms(1), {busy("a"), busy("b")}).granted == tickets{second});
}

TEST_CASE("slots: the one used longest ago makes room, one for each who waits") {
    slot_queue queue(three());
    queue.enter(key("1"), ms(0));
    const std::vector<slot_user> users{idle("a", ms(2'000)), idle("b", ms(3'000)),
                                       idle("c", ms(1'500))};
    slot_queue::decision decided = queue.decide(ms(0), users);
    REQUIRE(decided.evict.size() == 1);
    CHECK(decided.evict[0].task == "b");
    queue.enter(key("2"), ms(0));
    decided = queue.decide(ms(0), users);
    REQUIRE(decided.evict.size() == 2);
    CHECK(decided.evict[1].task == "a");
}

TEST_CASE("slots: one that is on its way out is waited for") {
    slot_queue queue(three());
    queue.enter(key("1"), ms(0));
    std::vector<slot_user> users{idle("a", ms(2'000)), busy("b"), busy("c")};
    users[1].leaving = true;
    CHECK(queue.decide(ms(0), users).evict.empty());
}

TEST_CASE("slots: what is used, young, at work or silent makes no room") {
    slot_queue queue(three());
    queue.enter(key("1"), ms(0));
    const slot_queue::decision decided = queue.decide(
        ms(0), {busy("a"), idle("b", ms(900)), idle("c", ms(5'000), background::running)});
    CHECK(decided.evict.empty());
    CHECK(decided.ask.empty());
    CHECK(decided.look_again_in == ms(100)); // then b is old enough
    CHECK(queue.decide(ms(0), {busy("a"), busy("b"), idle("c", ms(5'000), background::failed)})
              .evict.empty());
}

TEST_CASE("slots: it is asked first, and what nobody can tell of goes last") {
    slot_queue queue(three());
    queue.enter(key("1"), ms(0));
    slot_queue::decision decided =
        queue.decide(ms(0), {busy("a"), idle("b", ms(2'000), background::not_asked),
                             idle("c", ms(9'000), background::unknown)});
    CHECK(decided.evict.empty());
    REQUIRE(decided.ask.size() == 1);
    CHECK(decided.ask[0].task == "b");
    slot_user asked = idle("b", ms(2'000), background::not_asked);
    asked.asking = true;
    decided = queue.decide(ms(0), {busy("a"), asked, idle("c", ms(9'000), background::unknown)});
    CHECK((decided.ask.empty() && decided.evict.empty())); // its answer is waited for
    decided = queue.decide(ms(0), {busy("a"), idle("b", ms(2'000), background::running),
                                   idle("c", ms(9'000), background::unknown)});
    REQUIRE(decided.evict.size() == 1);
    CHECK(decided.evict[0].task == "c");
}

TEST_CASE("slots: waiting comes to an end, each in its own time") {
    slot_queue queue(three());
    const auto first = queue.enter(key("1"), ms(0));
    const auto second = queue.enter(key("2"), ms(4'000));
    CHECK(queue.decide(ms(4'000), three_busy()).look_again_in == ms(6'000));
    CHECK(queue.decide(ms(9'999), three_busy()).timed_out.empty());
    CHECK(queue.decide(ms(10'000), three_busy()).timed_out == tickets{first});
    CHECK(queue.decide(ms(14'000), three_busy()).timed_out == tickets{second});
    CHECK(queue.waiting() == 0);
}

TEST_CASE("slots: no time to wait still takes what is free") {
    slot_limits limits = three();
    limits.timeout = ms(0);
    slot_queue queue(limits);
    const auto first = queue.enter(key("1"), ms(0));
    CHECK(queue.decide(ms(0), {}).granted == tickets{first});
    const auto second = queue.enter(key("2"), ms(0));
    CHECK(queue.decide(ms(0), three_busy()).timed_out == tickets{second});
}

TEST_CASE(
    "slots: refused by the platform, the place in the queue is kept and one at a time tries") {
    slot_queue queue(three());
    const auto first = queue.enter(key("1"), ms(0));
    const auto second = queue.enter(key("2"), ms(0));
    CHECK(queue.decide(ms(0), {}).granted == tickets{first, second});
    queue.on_refused(first, ms(0), full(), 0.5);
    queue.on_refused(second, ms(0), full(), 0.5); // 1 s, then 2 s
    CHECK(queue.place(first) == 1);
    slot_queue::decision decided = queue.decide(ms(0), {});
    CHECK(decided.granted.empty());
    CHECK(decided.look_again_in == ms(2'000));
    CHECK(queue.decide(ms(2'000), {}).granted == tickets{first});
    CHECK(queue.decide(ms(2'001), {}).granted.empty());
    REQUIRE(queue.refused());
    CHECK(queue.refused()->message == "full");
    queue.on_taken(first); // so there was room: the other one may try too
    CHECK_FALSE(queue.refused());
    CHECK(queue.decide(ms(2'002), {busy("1")}).granted == tickets{second});
}

TEST_CASE("slots: a refusal honours Retry-After, is jittered, and asks one of ours to go") {
    slot_queue queue(three());
    const auto first = queue.enter(key("1"), ms(0));
    REQUIRE(queue.decide(ms(0), {idle("a", ms(5'000)), idle("b", ms(4'000))}).granted.size() == 1);
    queue.on_refused(first, ms(0), full(ms(7'000)), 0.0);
    slot_queue::decision decided =
        queue.decide(ms(0), {idle("a", ms(5'000)), idle("b", ms(4'000))});
    REQUIRE(decided.evict.size() == 1);
    CHECK(decided.evict[0].task == "a");
    CHECK(decided.look_again_in == ms(7'000));
    queue.on_freed(ms(100)); // a has stopped
    CHECK(queue.decide(ms(100), {idle("b", ms(4'000))}).granted == tickets{first});

    for (const auto& [jitter, expected] : {std::pair(0.0, 750), {0.5, 1'000}, {1.0, 1'250}}) {
        slot_queue other(three());
        const auto only = other.enter(key("1"), ms(0));
        other.decide(ms(0), {});
        other.on_refused(only, ms(0), full(), jitter);
        CHECK(other.decide(ms(0), {}).look_again_in == ms(expected));
    }
    slot_queue other(three());
    const auto only = other.enter(key("1"), ms(0));
    other.decide(ms(0), {});
    other.on_refused(only, ms(0), full(ms(8'000)), 0.5);
    CHECK(other.decide(ms(0), {}).look_again_in == ms(9'000));
}

TEST_CASE("slots: nobody waits for its own place, nor makes others give theirs for it") {
    slot_queue queue(three());
    const auto first = queue.enter(key("1"), ms(0));
    const auto second = queue.enter(key("2"), ms(0));
    const auto third = queue.enter(key("3"), ms(0));
    const auto fourth = queue.enter(key("4"), ms(0));
    // Their creations are in doubt, so all of them are seen as users.
    const std::vector<slot_user> in_doubt{busy("1"), busy("2"), busy("3"), busy("4")};
    CHECK(queue.decide(ms(0), in_doubt).granted == tickets{first, second, third});
    CHECK(queue.decide(ms(1), in_doubt).granted.empty());
    queue.on_taken(first);
    queue.on_taken(second);
    CHECK(queue.decide(ms(2), in_doubt).granted.empty());
    queue.leave(third);
    CHECK(queue.decide(ms(3), {busy("1"), busy("2"), busy("4")}).granted == tickets{fourth});

    slot_queue other(three());
    const auto only = other.enter(key("1"), ms(0));
    const slot_queue::decision decided =
        other.decide(ms(0), {busy("1"), busy("a"), idle("b", ms(5'000))});
    CHECK(decided.granted == tickets{only});
    CHECK(decided.evict.empty());
}

TEST_CASE("slots: a platform that asks for patience, with places free, stops nothing of ours") {
    const cloud::failure patience{cloud::failure_kind::rate_limited, 429, "slow down", {}};
    slot_queue queue(three());
    const auto first = queue.enter(key("1"), ms(0));
    queue.decide(ms(0), {});
    queue.on_refused(first, ms(0), patience, 0.5);
    CHECK(queue.decide(ms(0), {idle("a", ms(5'000)), busy("b")}).evict.empty());
    // With as many of ours as there may be, one of them is in the way whatever the platform says.
    CHECK(queue.decide(ms(1), {idle("a", ms(5'000)), busy("b"), busy("c")}).evict.size() == 1);
    CHECK(queue.decide(ms(1'000), {idle("a", ms(5'000)), busy("b")}).granted == tickets{first});
}

TEST_CASE("slots: a random crowd: never too many, nobody forgotten, first come first served") {
    std::mt19937 random(7);
    slot_queue queue(three());
    std::set<slot_queue::ticket> waiting;
    std::set<slot_queue::ticket> granted;
    slot_queue::ticket last_granted = 0;
    ms now{0};
    for (int step = 0; step < 20'000; ++step) {
        now += ms(random() % 50);
        if (random() % 3 == 0) {
            waiting.insert(queue.enter(key(std::to_string(step)), now));
        }
        if (!granted.empty() && random() % 4 == 0) {
            queue.leave(*granted.begin()); // it is done with its place
            granted.erase(granted.begin());
        }
        if (!waiting.empty() && random() % 20 == 0) {
            const auto gone =
                std::next(waiting.begin(), static_cast<long>(random() % waiting.size()));
            queue.leave(*gone);
            waiting.erase(gone);
        }
        const slot_queue::decision decided = queue.decide(now, {});
        for (const auto each : decided.timed_out) {
            CHECK(waiting.erase(each) == 1);
        }
        for (const auto each : decided.granted) {
            CHECK(each > last_granted);
            last_granted = each;
            CHECK(waiting.erase(each) == 1);
            granted.insert(each);
        }
        CHECK(granted.size() <= 3);
        CHECK(queue.waiting() == waiting.size());
        CHECK((granted.size() == 3 || waiting.empty()));
    }
}
