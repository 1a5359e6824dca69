// Stopping and deleting, stepped: each answer of the machine is asserted as text.
#include "core/shut_down_fsm.hpp"
#include "failures.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::core;
using cloud::sandbox_info;
using cloud::sandbox_state;
using kind = cloud::failure_kind;
using test::all_kinds;
using test::failure_of;

namespace {

using action = shut_down_fsm::action;
using goal = shut_down_fsm::goal;

std::string text_of(const shut_down_fsm::step& step) {
    switch (step.what) {
    case action::get:
        return "get";
    case action::list:
        return "list";
    case action::stop:
        return "stop";
    case action::remove:
        return "remove";
    case action::wait:
        return "wait " + std::to_string(step.delay.count());
    case action::done:
        return "done";
    case action::fail:
        return "fail " + std::string(info(step.error.value().name()).text);
    }
    return "?";
}

sandbox_info shown(std::string id, sandbox_state state) {
    sandbox_info info;
    info.id = std::move(id);
    info.state = state;
    return info;
}

struct bench {
    sandbox_record record;
    shut_down_fsm fsm;
    milliseconds now{0};
    shut_down_fsm::step last;

    explicit bench(goal wanted) : fsm(record, wanted, "inst") {
        record.sandbox_id = "sb_1";
        record.state = life_state::running;
        record.generation = 3;
    }
    bench(const bench&) = delete;
    bench& operator=(const bench&) = delete;

    std::string note(shut_down_fsm::step step) {
        last = std::move(step);
        return text_of(last);
    }
    std::string begin() { return note(fsm.begin(now)); }
    std::string stopped() { return note(fsm.on_stop(now, cloud::result<void>())); }
    std::string stop_failed(kind why) { return note(fsm.on_stop(now, failure_of(why))); }
    std::string removed() { return note(fsm.on_remove(now, cloud::result<void>())); }
    std::string remove_failed(kind why) { return note(fsm.on_remove(now, failure_of(why))); }
    std::string got(sandbox_state state) { return note(fsm.on_get(now, shown("sb_1", state))); }
    std::string get_failed(kind why) { return note(fsm.on_get(now, failure_of(why))); }
    std::string listed(std::vector<sandbox_info> all) { return note(fsm.on_list(now, all)); }
    std::string list_failed(kind why) { return note(fsm.on_list(now, failure_of(why))); }
    std::string waited() {
        REQUIRE(last.what == action::wait);
        now += last.delay;
        return note(fsm.on_waited(now));
    }
};

} // namespace

TEST_CASE("shut down: nothing known is nothing to do") {
    for (const goal wanted : {goal::stopped, goal::deleted}) {
        bench b(wanted);
        b.record.sandbox_id.clear();
        CHECK(b.begin() == "done");
    }
}

TEST_CASE("shut down: a stop is asked for once and waited for") {
    bench b(goal::stopped);
    CHECK(b.begin() == "stop");
    CHECK(b.stopped() == "wait 100");
    CHECK(b.record.state == life_state::stopping);
    CHECK(b.waited() == "get");
    CHECK(b.got(sandbox_state::stopping) == "wait 150");
    CHECK(b.waited() == "get");
    CHECK(b.got(sandbox_state::stopped) == "done");
    CHECK(b.record.state == life_state::stopped);
    CHECK(b.record.sandbox_id == "sb_1");
    CHECK(b.record.generation == 3);
}

TEST_CASE(
    "shut down: a deletion is asked for again as long as it is listed, whatever it is seen to be") {
    for (const sandbox_state state :
         {sandbox_state::creating, sandbox_state::starting, sandbox_state::running,
          sandbox_state::stopping, sandbox_state::stopped, sandbox_state::failed,
          sandbox_state::unknown}) {
        CAPTURE(static_cast<int>(state));
        bench b(goal::deleted);
        REQUIRE(b.begin() == "remove");
        REQUIRE(b.remove_failed(kind::not_found) == "list");
        REQUIRE(b.listed({shown("sb_1", state)}).starts_with("wait"));
        CHECK(b.record.sandbox_id == "sb_1");
        REQUIRE(b.waited() == "remove");
        CHECK(b.removed() == "done");
        CHECK(b.record.sandbox_id.empty());
    }
}

TEST_CASE("shut down: how a stop can fail") {
    const std::map<std::string_view, std::pair<std::string, std::string>> expected{
        {"unreachable", {"wait 500", "stop"}},
        {"interrupted", {"wait 500", "get"}},
        {"unauthorized", {"fail unauthorized", ""}},
        {"forbidden", {"fail unauthorized", ""}},
        {"not_found", {"list", ""}},
        {"not_found_unproven", {"wait 500", "stop"}},
        {"conflict", {"get", ""}},
        {"too_large", {"fail cloud_error", ""}},
        {"bad_request", {"fail cloud_error", ""}},
        {"cap_reached", {"fail rate_limited", ""}},
        {"rate_limited", {"wait 500", "stop"}},
        {"no_capacity", {"wait 500", "get"}},
        {"server_error", {"wait 500", "get"}},
        {"bad_answer", {"wait 500", "get"}}};
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b(goal::stopped);
        REQUIRE(b.begin() == "stop");
        CHECK(b.stop_failed(each.kind) == expected.at(each.name).first);
        CHECK(b.record.state == life_state::running);
        CHECK(b.record.sandbox_id == "sb_1");
        if (b.last.what == action::wait) CHECK(b.waited() == expected.at(each.name).second);
        if (b.last.what == action::fail) CHECK(b.last.error->sandbox_id == "sb_1");
    }
}

TEST_CASE("shut down: a stop answered by 409 or 404 succeeds when it is stopped or gone") {
    SUBCASE("409, because it is stopped") {
        bench b(goal::stopped);
        REQUIRE(b.begin() == "stop");
        REQUIRE(b.stop_failed(kind::conflict) == "get");
        CHECK(b.got(sandbox_state::stopped) == "done");
        CHECK(b.record.state == life_state::stopped);
    }
    SUBCASE("409, because it boots: stopped once it runs") {
        bench b(goal::stopped);
        REQUIRE(b.begin() == "stop");
        REQUIRE(b.stop_failed(kind::conflict) == "get");
        REQUIRE(b.got(sandbox_state::starting) == "wait 100");
        CHECK(b.record.state == life_state::starting);
        REQUIRE(b.waited() == "get");
        REQUIRE(b.got(sandbox_state::running) == "wait 150");
        CHECK(b.waited() == "stop");
    }
    SUBCASE("404, and the listing does not show it") {
        bench b(goal::stopped);
        REQUIRE(b.begin() == "stop");
        REQUIRE(b.stop_failed(kind::not_found) == "list");
        CHECK(b.listed({shown("sb_2", sandbox_state::running)}) == "done");
        CHECK(b.record.state == life_state::absent);
        CHECK(b.record.sandbox_id.empty());
    }
    SUBCASE("404, but the listing shows it running") {
        bench b(goal::stopped);
        REQUIRE(b.begin() == "stop");
        REQUIRE(b.stop_failed(kind::not_found) == "list");
        REQUIRE(b.listed({shown("sb_1", sandbox_state::running)}) == "wait 100");
        CHECK(b.record.sandbox_id == "sb_1");
        CHECK(b.waited() == "stop");
    }
}

TEST_CASE("shut down: every state that a look can show") {
    struct row {
        sandbox_state state;
        const char* answer;
        const char* then;
        life_state recorded;
    };
    const row rows[] = {
        {sandbox_state::creating, "wait 150", "get", life_state::creating},
        {sandbox_state::starting, "wait 150", "get", life_state::starting},
        {sandbox_state::running, "wait 150", "stop", life_state::running},
        {sandbox_state::stopping, "wait 150", "get", life_state::stopping},
        {sandbox_state::stopped, "done", "", life_state::stopped},
        {sandbox_state::failed, "wait 150", "stop", life_state::failed},
        {sandbox_state::deleted, "done", "", life_state::absent},
        {sandbox_state::unknown, "wait 150", "get", life_state::stopping},
    };
    for (const row& each : rows) {
        CAPTURE(static_cast<int>(each.state));
        bench b(goal::stopped);
        REQUIRE(b.begin() == "stop");
        REQUIRE(b.stopped() == "wait 100");
        REQUIRE(b.waited() == "get");
        CHECK(b.got(each.state) == each.answer);
        CHECK(b.record.state == each.recorded);
        CHECK(b.record.sandbox_id.empty() == (each.recorded == life_state::absent));
        if (b.last.what == action::wait) CHECK(b.waited() == each.then);
    }
}

TEST_CASE("shut down: how looks and listings can fail") {
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b(goal::stopped);
        REQUIRE(b.begin() == "stop");
        REQUIRE(b.stopped() == "wait 100");
        REQUIRE(b.waited() == "get");
        const std::string look = b.get_failed(each.kind);
        bench c(goal::stopped);
        REQUIRE(c.begin() == "stop");
        REQUIRE(c.stop_failed(kind::not_found) == "list");
        const std::string listing = c.list_failed(each.kind);
        CHECK(b.record.sandbox_id == "sb_1");
        CHECK(c.record.sandbox_id == "sb_1"); // a failed query is not "gone"
        switch (each.kind) {
        case kind::not_found:
            CHECK(look == "list");
            CHECK(listing.starts_with("fail"));
            break;
        case kind::unreachable:
        case kind::interrupted:
        case kind::not_found_unproven:
        case kind::conflict:
        case kind::rate_limited:
        case kind::no_capacity:
        case kind::server_error:
        case kind::bad_answer:
            CHECK(look == "wait 500");
            CHECK(b.waited() == "get");
            CHECK(listing == "wait 500");
            CHECK(c.waited() == "list");
            break;
        default:
            CHECK(look.starts_with("fail"));
            CHECK(listing.starts_with("fail"));
        }
    }
}

TEST_CASE("shut down: gone while it was being stopped is fine too") {
    bench b(goal::stopped);
    REQUIRE(b.begin() == "stop");
    REQUIRE(b.stopped() == "wait 100");
    REQUIRE(b.waited() == "get");
    REQUIRE(b.get_failed(kind::not_found) == "list");
    CHECK(b.listed({}) == "done");
    CHECK(b.record.state == life_state::absent);
}

TEST_CASE("shut down: a stop that never takes effect comes to an end") {
    for (const std::string how : {"accepted", "conflict", "server_error", "not_found"}) {
        for (const sandbox_state stays :
             {sandbox_state::running, sandbox_state::stopping, sandbox_state::failed}) {
            CAPTURE(how);
            bench b(goal::stopped);
            std::string answer = b.begin();
            int requests = 0;
            while (!answer.starts_with("fail") && requests < 2'000) {
                REQUIRE(answer != "done");
                if (answer == "get") {
                    answer = b.got(stays);
                } else if (answer == "list") {
                    answer = b.listed({shown("sb_1", stays)});
                } else if (answer == "stop") {
                    if (how == "accepted") {
                        answer = b.stopped();
                    } else {
                        for (const auto& each : all_kinds) {
                            if (each.name == how) answer = b.stop_failed(each.kind);
                        }
                    }
                } else {
                    answer = b.waited();
                    continue;
                }
                ++requests;
                b.now += milliseconds(20);
            }
            CHECK(answer == "fail cloud_error");
            CHECK(requests < 500);
            CHECK(b.now >= milliseconds(120'000));
            CHECK(b.now < milliseconds(180'000));
            CHECK(b.last.error->sandbox_id == "sb_1");
            CHECK(b.record.sandbox_id == "sb_1");
        }
    }
}

TEST_CASE("shut down: trouble that lasts is told, Retry-After is honoured") {
    bench b(goal::stopped);
    REQUIRE(b.begin() == "stop");
    CHECK(b.note(b.fsm.on_stop(b.now, failure_of(kind::rate_limited, std::chrono::seconds(20)))) ==
          "wait 20000");
    REQUIRE(b.waited() == "stop");
    CHECK(b.note(b.fsm.on_stop(b.now, failure_of(kind::rate_limited, std::chrono::seconds(20)))) ==
          "wait 20000");
    REQUIRE(b.waited() == "stop");
    CHECK(b.stop_failed(kind::rate_limited) == "wait 2000");
    b.now = milliseconds(45'000);
    CHECK(b.stop_failed(kind::rate_limited) == "fail rate_limited");
    CHECK(b.record.state == life_state::running);
}

TEST_CASE("shut down: a deletion is final") {
    bench b(goal::deleted);
    CHECK(b.begin() == "remove");
    CHECK(b.removed() == "done");
    CHECK(b.record.state == life_state::absent);
    CHECK(b.record.sandbox_id.empty());
    CHECK(b.record.generation == 3); // never given twice
}

TEST_CASE("shut down: how a deletion can fail") {
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        bench b(goal::deleted);
        REQUIRE(b.begin() == "remove");
        const std::string answer = b.remove_failed(each.kind);
        CHECK(b.record.sandbox_id == "sb_1");
        switch (each.kind) {
        case kind::not_found:
            CHECK(answer == "list");
            break;
        case kind::unauthorized:
        case kind::forbidden:
        case kind::too_large:
        case kind::bad_request:
        case kind::cap_reached:
            CHECK(answer.starts_with("fail"));
            break;
        default:
            CHECK(answer == "wait 500");
            CHECK(b.waited() == "remove"); // also after a lost answer: deleting twice does no harm
        }
    }
}

TEST_CASE("shut down: a deletion answered by 404 is done when the listing agrees") {
    bench b(goal::deleted);
    REQUIRE(b.begin() == "remove");
    REQUIRE(b.remove_failed(kind::not_found) == "list");
    SUBCASE("not listed") {
        CHECK(b.listed({}) == "done");
    }
    SUBCASE("listed as deleted") {
        CHECK(b.listed({shown("sb_1", sandbox_state::deleted)}) == "done");
    }
    SUBCASE("listed as stopped: once more") {
        REQUIRE(b.listed({shown("sb_1", sandbox_state::stopped)}) == "wait 100");
        REQUIRE(b.waited() == "remove");
        CHECK(b.removed() == "done");
    }
    SUBCASE("listed for ever") {
        std::string answer = b.listed({shown("sb_1", sandbox_state::running)});
        while (answer.starts_with("wait")) {
            REQUIRE(b.waited() == "remove");
            REQUIRE(b.remove_failed(kind::not_found) == "list");
            answer = b.listed({shown("sb_1", sandbox_state::running)});
        }
        CHECK(answer == "fail cloud_error");
        CHECK(b.now >= milliseconds(120'000));
        CHECK(b.record.sandbox_id == "sb_1");
        return;
    }
    CHECK(b.record.sandbox_id.empty());
    CHECK(b.record.state == life_state::absent);
}

namespace {

sandbox_info made(std::string id, std::string creation, sandbox_state state) {
    sandbox_info info = shown(std::move(id), state);
    info.tags = {{std::string(tag::owner), std::string(tag::owner_value)},
                 {std::string(tag::instance), "inst"},
                 {std::string(tag::creation), std::move(creation)}};
    return info;
}

struct doubtful : bench {
    explicit doubtful(goal wanted) : bench(wanted) {
        record.sandbox_id.clear();
        record.state = life_state::creating;
        record.creation_id = "c1";
        record.attempt = 1;
        record.create_pending = true;
    }
};

} // namespace

TEST_CASE("shut down: of an open intent, what it made is found by its tag") {
    for (const goal wanted : {goal::stopped, goal::deleted}) {
        doubtful b(wanted);
        CHECK(b.begin() == "list");
        const std::vector<sandbox_info> all{made("sb_8", "c11.1", sandbox_state::running),
                                            made("sb_9", "c1.1", sandbox_state::running)};
        CHECK(b.listed(all) == (wanted == goal::deleted ? "remove" : "stop"));
        CHECK(b.record.sandbox_id == "sb_9");
        CHECK_FALSE(b.record.create_pending);
    }
}

TEST_CASE("shut down: an open intent ends with two listings some time apart, its doubt stays") {
    doubtful b(goal::deleted);
    CHECK(b.begin() == "list");
    CHECK(b.listed({made("sb_9", "c1.1", sandbox_state::deleted)}) == "wait 10000");
    CHECK(b.record.create_pending);
    CHECK(b.waited() == "list");
    CHECK(b.listed({}) == "done");
    CHECK_FALSE(b.record.create_pending);
    CHECK(b.record.state == life_state::absent);
    REQUIRE(b.record.doubts.size() == 1);
    CHECK(b.record.doubts[0].creation_id == "c1");
}

TEST_CASE("shut down: an open intent stays open while nobody can look") {
    for (const auto& each : all_kinds) {
        CAPTURE(each.name);
        doubtful b(goal::deleted);
        REQUIRE(b.begin() == "list");
        const std::string answer = b.list_failed(each.kind);
        CHECK((answer == "wait 500" || answer.starts_with("fail")));
        CHECK(b.record.create_pending);
    }
}
