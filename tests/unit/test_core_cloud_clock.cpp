// Whose word on the time counts, and what is deleted by it.
#include "core/cloud_clock.hpp"
#include "core/retention.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace sandboxd::core;
using namespace std::chrono_literals;
using ms = milliseconds;

namespace {

constexpr ms day = 24h;
constexpr ms true_time = 20'000 * day;

// A machine that came up at `true_time`, and what it is told.
struct machine {
    explicit machine(ms local_is_ahead = 0ms) : clock(elapsed, true_time + local_is_ahead) {}

    void pass(ms time) {
        elapsed += time;
        awake += time;
    }
    void sleep(ms time) { elapsed += time; }
    ms now() const { return true_time + elapsed; }
    void hear(ms ahead = 0ms) { clock.on_date(elapsed, awake, now() + ahead); }
    ms error() const { return clock.at(elapsed) - now(); }

    ms elapsed{0};
    ms awake{0};
    cloud_clock clock;
};

} // namespace

TEST_CASE("cloud clock: the cloud's word counts, not the local clock's") {
    machine m(3min);
    CHECK_FALSE(m.clock.known());
    CHECK_FALSE(m.clock.settled());
    CHECK(m.error() == 3min);
    CHECK_FALSE(m.clock.ahead(m.elapsed, m.now()));
    m.hear();
    CHECK(m.clock.settled());
    CHECK(m.error() == 0ms);
    CHECK(m.clock.ahead(m.elapsed, m.now() + 3min) == 3min);
    m.pass(1s);
    m.hear(-1s); // the network's
    CHECK(m.error() == 0ms);
    m.hear(50s); // the cloud's own clock was set
    CHECK(m.error() == 50s);
    CHECK(m.clock.settled());
}

TEST_CASE(
    "cloud clock: where no answer has a Date, it goes by the machine's, and is never settled") {
    machine m(3min);
    m.clock.on_no_date();
    CHECK(m.clock.known());
    CHECK(m.clock.usable());
    CHECK_FALSE(m.clock.settled());
    m.pass(2 * day);
    CHECK(m.error() == 3min);
    CHECK_FALSE(m.clock.ahead(m.elapsed, m.now() + 3min));
    m.hear(); // one comes after all
    CHECK(m.clock.settled());
    CHECK(m.error() == 0ms);
}

TEST_CASE("cloud clock: an answer without a Date takes nothing from one that had it") {
    machine m(3min);
    m.hear();
    m.clock.on_no_date();
    CHECK(m.clock.settled());
    m.pass(10s);
    m.hear(1h);
    m.clock.on_no_date();
    CHECK(m.clock.in_doubt());
    CHECK_FALSE(m.clock.usable());
}

TEST_CASE("cloud clock: one answer that says something else changes nothing") {
    for (const ms wrong : {3'650 * day, -3'650 * day, ms(1h), ms(-6min)}) {
        machine m;
        m.hear();
        m.pass(10s);
        m.hear(wrong);
        CHECK_FALSE(m.clock.settled());
        CHECK(m.clock.in_doubt());
        CHECK(m.clock.known());
        CHECK(m.error() == 0ms);
        CHECK(m.clock.ahead(m.elapsed, m.now()) == -wrong); // health tells of it
        m.pass(5min);
        m.hear();
        CHECK(m.clock.settled());
        CHECK(m.error() == 0ms);
        m.hear(wrong); // and no old one confirms it
        CHECK(m.error() == 0ms);
    }
}

TEST_CASE("cloud clock: a jump is believed when it is confirmed a minute later") {
    machine m;
    m.hear();
    m.hear(day);
    m.pass(59s);
    m.hear(day);
    CHECK_FALSE(m.clock.settled());
    CHECK(m.error() == 0ms);
    m.pass(1s);
    m.hear(day + 1s);
    CHECK(m.clock.settled());
    CHECK(m.error() == day + 1s);
}

TEST_CASE("cloud clock: answers that agree with nothing confirm nothing") {
    machine m;
    m.hear();
    for (int i = 1; i < 20; ++i) {
        m.hear(i * day);
        m.pass(2min);
    }
    CHECK_FALSE(m.clock.settled());
    CHECK(m.error() == 0ms);
}

TEST_CASE("cloud clock: a machine that slept for days agrees with the cloud at once") {
    machine m;
    m.hear();
    m.sleep(3 * day);
    m.hear();
    CHECK(m.clock.settled());
    CHECK(m.error() == 0ms);
}

TEST_CASE("cloud clock: an answer that lay unread while the machine slept is not the time") {
    machine m;
    m.hear();
    const ms sent = m.now();
    m.sleep(8h);
    m.clock.on_date(m.elapsed, m.awake, sent);
    m.clock.on_date(m.elapsed, m.awake, sent);
    CHECK_FALSE(m.clock.settled());
    CHECK(m.error() == 0ms);
    m.hear();
    CHECK(m.clock.settled());
}

TEST_CASE("cloud clock: two that were sent together and read far apart do not confirm each other") {
    machine m;
    m.hear();
    m.sleep(1h);
    const ms sent = m.now() - 1h;
    m.clock.on_date(m.elapsed, m.awake, sent);
    m.pass(61s);
    m.clock.on_date(m.elapsed, m.awake, sent);
    CHECK_FALSE(m.clock.settled());
    CHECK(m.error() == 0ms);
}

TEST_CASE("cloud clock: a local clock that is wrong is put right by two answers") {
    machine m(40 * day);
    m.hear();
    CHECK_FALSE(m.clock.known());
    CHECK_FALSE(m.clock.settled());
    m.pass(1min);
    m.hear();
    CHECK(m.clock.settled());
    CHECK(m.error() == 0ms);
}

TEST_CASE("cloud clock: a daemon's first Date is compared with what the last one knew") {
    const clock_mark kept{"boot", ms(0), true_time};
    machine m(10 * day); // this machine's clock has been set meanwhile
    m.pass(2 * day);
    m.clock.resume(kept, true, m.elapsed);
    CHECK(m.clock.known());
    CHECK_FALSE(m.clock.settled());
    CHECK(m.error() == 0ms);
    m.hear(10 * day);
    CHECK_FALSE(m.clock.settled());
    m.hear();
    CHECK(m.clock.settled());

    machine rebooted;
    rebooted.clock.resume(kept, false, rebooted.elapsed);
    CHECK_FALSE(rebooted.clock.known());
    rebooted.hear(); // as the machine's clock says
    CHECK(rebooted.clock.settled());

    machine reset(-3'650 * day); // a clock without a battery
    reset.clock.resume(kept, false, reset.elapsed);
    CHECK(reset.error() == 0ms); // at least
    reset.hear(-3'650 * day);    // before what is known to be past
    CHECK_FALSE(reset.clock.settled());

    machine first(1h);
    first.clock.resume({}, false, first.elapsed);
    CHECK(first.error() == 1h);
}

TEST_CASE("retention: two listings in agreement, by a settled clock") {
    sandbox_record record;
    record.sandbox_id = "sb_1";
    record.state = life_state::stopped;
    record.stopped_since = 1'000;
    constexpr ms limit = 100s;
    const auto old = std::optional<std::int64_t>(1'100);
    {
        retention age;
        CHECK_FALSE(age.on_listing(record, 1'099, 0s, limit));
        CHECK_FALSE(age.wants_another());
        CHECK_FALSE(age.on_listing(record, old, 1s, limit));
        CHECK(age.wants_another());
        CHECK_FALSE(age.on_listing(record, old, 10s, limit));
        CHECK(age.on_listing(record, old, 11s, limit));
        CHECK(age.on_listing(record, old, 12s, limit)); // until it is gone
    }
    {
        retention age;
        age.on_listing(record, old, 0s, limit);
        CHECK_FALSE(age.on_listing(record, std::nullopt, 20s, limit)); // the clock is in doubt
        CHECK_FALSE(age.on_listing(record, old, 30s, limit));
        CHECK(age.on_listing(record, old, 40s, limit));
    }
    {
        retention age;
        age.on_listing(record, old, 0s, limit);
        sandbox_record another = record;
        another.sandbox_id = "sb_2";
        CHECK_FALSE(age.on_listing(another, old, 20s, limit));
        another.state = life_state::running;
        CHECK_FALSE(age.on_listing(another, old, 40s, limit));
        another.state = life_state::stopped;
        another.stopped_since = 0; // since when is not known
        CHECK_FALSE(age.on_listing(another, old, 60s, limit));
        CHECK_FALSE(age.on_listing(record, old, 80s, 0s)); // retention is off
    }
}
