// A bring-up machine on a bench: its record, a clock that moves only when told to, and its answers
// as text ("save", "wait 100", "fail boot_failed"), so that tests read as a conversation.
#pragma once

#include "core/bring_up_fsm.hpp"
#include "failures.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sandboxd::test {

using namespace sandboxd::core;
using cloud::sandbox_info;
using cloud::sandbox_state;
using strings = std::map<std::string, std::string>;

inline std::string text_of(const bring_up_fsm::step& step) {
    switch (step.what) {
    case bring_up_fsm::action::queue:
        return "queue";
    case bring_up_fsm::action::save:
        return "save";
    case bring_up_fsm::action::get:
        return "get";
    case bring_up_fsm::action::list:
        return "list";
    case bring_up_fsm::action::create:
        return "create";
    case bring_up_fsm::action::start:
        return "start";
    case bring_up_fsm::action::remove:
        return "remove";
    case bring_up_fsm::action::wait:
        return "wait " + std::to_string(step.delay.count());
    case bring_up_fsm::action::done:
        return "done";
    case bring_up_fsm::action::fail:
        return "fail " + std::string(info(step.error.value().name()).text);
    }
    return "?";
}

inline sandbox_record new_record(bool persistent = true) {
    sandbox_record record;
    record.key = {"p", "t"};
    record.persistent = persistent;
    return record;
}

// A record of a sandbox that has run before.
inline sandbox_record known_record(life_state state, bool persistent = true) {
    sandbox_record record = new_record(persistent);
    record.creation_id = "old-1";
    record.attempt = 1;
    record.sandbox_id = "sb_old";
    record.state = state;
    record.generation = 4;
    record.created_at = 100;
    return record;
}

// As a daemon that died in the middle of a create has left it.
inline sandbox_record pending_record() {
    sandbox_record record = new_record();
    record.creation_id = "dead-1";
    record.attempt = 1;
    record.create_pending = true;
    record.state = life_state::creating;
    return record;
}

inline sandbox_info shown(std::string id, sandbox_state state, strings tags = {}) {
    sandbox_info info;
    info.id = std::move(id);
    info.state = state;
    info.tags = std::move(tags);
    info.created_at = 1000;
    return info;
}

// One machine with the record and the clock it works on.
struct bring_up_bench {
    sandbox_record record;
    bring_up_fsm fsm;
    milliseconds now{0};
    bring_up_fsm::step last;
    bool crowded = false; // else a place is free whenever one is asked for

    explicit bring_up_bench(sandbox_record start = new_record(), bring_up_limits limits = {})
        : record(std::move(start)), fsm(record, "seed", "inst", limits) {}
    bring_up_bench(const bring_up_bench&) = delete;
    bring_up_bench& operator=(const bring_up_bench&) = delete;

    std::string note(bring_up_fsm::step step) {
        last = std::move(step);
        if (last.what == bring_up_fsm::action::queue && !crowded) {
            last = fsm.on_place(now);
        }
        return text_of(last);
    }
    std::string placed() {
        REQUIRE(last.what == bring_up_fsm::action::queue);
        return note(fsm.on_place(now));
    }
    std::string begin() { return note(fsm.begin(now)); }
    std::string saved() { return note(fsm.on_saved(now)); }
    std::string save_failed() { return note(fsm.on_save_failed(now, "disk full")); }
    std::string got(sandbox_state state) {
        return note(fsm.on_get(now, shown(record.sandbox_id, state)));
    }
    std::string get_failed(cloud::failure_kind why) {
        return note(fsm.on_get(now, failure_of(why)));
    }
    std::string listed(std::vector<sandbox_info> all) { return note(fsm.on_list(now, all)); }
    std::string list_failed(cloud::failure_kind why) {
        return note(fsm.on_list(now, failure_of(why)));
    }
    std::string created(std::string id) { return note(fsm.on_create(now, std::move(id))); }
    std::string create_failed(cloud::failure_kind why) {
        return note(fsm.on_create(now, failure_of(why)));
    }
    std::string started() { return note(fsm.on_start(now, cloud::result<void>())); }
    std::string start_failed(cloud::failure_kind why) {
        return note(fsm.on_start(now, failure_of(why)));
    }
    std::string removed() { return note(fsm.on_remove(now, cloud::result<void>())); }
    std::string remove_failed(cloud::failure_kind why) {
        return note(fsm.on_remove(now, failure_of(why)));
    }
    std::string waited() {
        REQUIRE(last.what == bring_up_fsm::action::wait);
        now += last.delay;
        return note(fsm.on_waited(now));
    }

    // Answers a wait and then `get` with `state` until the machine does something else.
    std::string wait_while(sandbox_state state) {
        std::string answer = text_of(last);
        for (int i = 0; i < 10'000 && answer.starts_with("wait"); ++i) {
            REQUIRE(waited() == "get");
            answer = got(state);
        }
        return answer;
    }
    strings our_tags() const { return tags_for(record, "inst"); }

    // Up to the new sandbox's first look.
    void create(std::string id) {
        REQUIRE(begin() == "save");
        REQUIRE(saved() == "create");
        REQUIRE(created(std::move(id)) == "save");
        REQUIRE(saved() == "get");
    }
    // Up to the listing that a create without an answer needs.
    void lose_create(cloud::failure_kind why = cloud::failure_kind::interrupted) {
        REQUIRE(begin() == "save");
        REQUIRE(saved() == "create");
        REQUIRE(create_failed(why) == "list");
    }
};

} // namespace sandboxd::test
