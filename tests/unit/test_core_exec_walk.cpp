// The command's machine fed with random events, sensible and senseless ones: what must hold on
// every path.
#include "exec_bench.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

using namespace sandboxd;
using namespace sandboxd::test;
using kind = cloud::failure_kind;

namespace {

struct seen {
    int finishes = 0;
    int sends = 0;
    bool in_flight = false; // sent, and not answered
    bool accepted = false;  // a 200
    bool maybe_run = false; // accepted, or answered in a way that leaves it open
    bool printed = false;
    bool may_send = true; // nothing was sent since the last certain refusal
    int kills_running = 0;
    bool killed_since_accept = false; // some kill begun after the last acceptance was confirmed
    bool killed_for_good = false;     // or one that also holds for what starts later
    int stale_kills = 0;              // of those running, begun before the acceptance
    bool told = false;                // its runner's word on its end
    int looks = 0;                    // asked for, not answered
};

} // namespace

TEST_CASE("exec: a random walk keeps every promise") {
    std::mt19937 random(20240501);
    int confirmed_ends = 0;
    int resent = 0;
    for (int walk = 0; walk < 30'000; ++walk) {
        CAPTURE(walk);
        const bool sensible = walk % 2 == 0; // events only when something can cause them
        exec_fsm fsm;
        milliseconds now{0};
        seen all;
        std::string trace;

        CAPTURE(trace);
        const auto apply = [&](const exec_fsm::steps& steps) {
            for (const exec_fsm::step& step : steps) {
                REQUIRE(all.finishes == 0); // nothing follows finish
                switch (step.what) {
                case exec_fsm::action::send:
                    REQUIRE(all.may_send);
                    REQUIRE_FALSE(all.maybe_run);
                    all.may_send = false;
                    all.in_flight = true;
                    resent += all.sends++ > 0 ? 1 : 0;
                    break;
                case exec_fsm::action::kill:
                    ++all.kills_running;
                    REQUIRE(fsm.ending());
                    break;
                case exec_fsm::action::look:
                    ++all.looks;
                    REQUIRE(fsm.ending());
                    break;
                case exec_fsm::action::correct:
                    REQUIRE(false); // nothing was told yet
                    break;
                case exec_fsm::action::wait:
                case exec_fsm::action::linger:
                    REQUIRE(step.delay > milliseconds(0));
                    break;
                case exec_fsm::action::finish:
                    ++all.finishes;
                    break;
                default:
                    break;
                }
            }
        };

        apply(fsm.begin());
        for (int count = 0; count < 400 && !fsm.done(); ++count) {
            const unsigned event = random() % 17;
            now += milliseconds(random() % 4'000);
            trace += std::to_string(event) + " ";
            switch (event) {
            case 0:
                apply(fsm.on_acquired());
                break;
            case 1:
                if (random() % 4 == 0)
                    apply(fsm.on_not_acquired(rpc_error(error_name::boot_failed, "no")));
                break;
            case 2:
                apply(fsm.on_waited());
                break;
            case 3:
                if (!all.in_flight) break; // no answer without a request
                all.in_flight = false;
                all.accepted = all.maybe_run = true;
                all.stale_kills = all.kills_running;
                all.killed_since_accept = false;
                apply(fsm.on_sent());
                break;
            case 4: {
                if (!all.in_flight) break;
                all.in_flight = false;
                const auto& how = all_kinds[random() % all_kinds.size()];
                switch (how.kind) {
                case kind::conflict:
                case kind::not_found:
                case kind::unreachable:
                case kind::rate_limited:
                case kind::cap_reached:
                    all.may_send = true;
                    break;
                case kind::interrupted:
                case kind::not_found_unproven:
                case kind::no_capacity:
                case kind::server_error:
                case kind::bad_answer:
                    all.maybe_run = true;
                    break;
                default:
                    break;
                }
                apply(fsm.on_send_failed(now, failure_of(how.kind)));
                break;
            }
            case 5:
                if (all.in_flight && random() % 4 == 0) {
                    all.in_flight = false;
                    apply(fsm.on_not_sent(rpc_error(error_name::cloud_error, "no")));
                }
                break;
            case 6:
                if (!all.accepted && sensible) break;
                all.printed = true;
                apply(fsm.on_output());
                break;
            case 7:
                if (all.accepted || !sensible)
                    apply(fsm.on_exited(static_cast<int>(random() % 256)));
                break;
            case 8:
                if (all.accepted || !sensible) apply(fsm.on_refused("no"));
                break;
            case 9:
                if (all.accepted || !sensible) apply(fsm.on_cut(failure_of(kind::interrupted)));
                break;
            case 10:
                apply(fsm.on_cancel(static_cast<kill_signal>(random() % 3), random() % 2 == 0));
                break;
            case 11:
                if (random() % 3 == 0) apply(fsm.on_deadline());
                break;
            case 12: {
                if (all.kills_running == 0) break;
                --all.kills_running;
                const bool confirmed = random() % 3 != 0;
                const kill_reach reaches[] = {kill_reach::so_far, kill_reach::for_good,
                                              kill_reach::after_end, kill_reach::with_sandbox};
                const kill_reach reach = reaches[random() % 4];
                const bool stale = all.stale_kills > 0;
                all.stale_kills -= stale ? 1 : 0;
                all.killed_since_accept = all.killed_since_accept || (confirmed && !stale);
                all.killed_for_good =
                    all.killed_for_good || (confirmed && reach != kill_reach::so_far);
                apply(fsm.on_killed(confirmed, confirmed ? "" : "no answer", reach));
                break;
            }
            case 14:
                if (all.accepted && random() % 4 == 0) {
                    const exit_reason words[] = {exit_reason::exited, exit_reason::timed_out,
                                                 exit_reason::cancelled, exit_reason::lost};
                    const exit_reason word = words[random() % 4];
                    all.told = all.told || word != exit_reason::lost;
                    apply(fsm.on_verdict(told(word)));
                }
                break;
            case 15:
                if (all.looks > 0) {
                    --all.looks;
                    const exit_reason words[] = {exit_reason::exited, exit_reason::timed_out,
                                                 exit_reason::cancelled};
                    all.told = all.accepted = all.maybe_run = true;
                    apply(fsm.on_found(told(words[random() % 3])));
                }
                break;
            case 16:
                if (all.looks > 0) {
                    --all.looks;
                    apply(fsm.on_found(std::nullopt));
                }
                break;
            case 13:
                if (random() % 200 == 0) {
                    apply(fsm.on_internal_error("a bug"));
                } else {
                    apply(fsm.on_lingered());
                }
                break;
            }
        }
        if (!fsm.done()) apply(fsm.on_internal_error("the end")); // ends it wherever it stands
        REQUIRE(fsm.done());
        REQUIRE(all.finishes == 1);

        const exec_exit& exit = fsm.exit();
        INFO(text_of(exit));
        if (exit.ran == started::no) CHECK_FALSE(all.maybe_run);
        if (all.accepted) CHECK(exit.ran != started::no);
        if (exit.ran == started::yes) CHECK((all.accepted || all.printed));
        if (exit.error && exit.error->retryable()) CHECK(exit.ran == started::no);
        switch (exit.reason) {
        case exit_reason::exited:
            CHECK(exit.returncode);
            CHECK(exit.ran == started::yes);
            CHECK_FALSE(exit.error);
            break;
        case exit_reason::timed_out:
            CHECK(exit.returncode == 124);
            break;
        case exit_reason::cancelled:
            CHECK(exit.returncode == 130);
            break;
        case exit_reason::lost:
            CHECK_FALSE(exit.returncode);
            CHECK(exit.ran != started::no);
            CHECK_FALSE(exit.message.empty());
            CHECK(exit.error);
            CHECK(exit.kill_unconfirmed);
            break;
        case exit_reason::failed:
            CHECK_FALSE(exit.returncode);
            CHECK_FALSE(exit.message.empty());
            CHECK(exit.error);
            break;
        }
        if (exit.reason == exit_reason::timed_out || exit.reason == exit_reason::cancelled) {
            if (!exit.kill_unconfirmed && exit.ran != started::no) {
                CHECK((all.killed_since_accept || all.killed_for_good || all.told));
                ++confirmed_ends;
            }
            CHECK((exit.kill_unconfirmed ? !exit.message.empty() : true));
        }
    }
    // The walk did go where it should.
    CHECK(confirmed_ends > 100);
    CHECK(resent > 500);
}
