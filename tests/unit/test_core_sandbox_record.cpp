// Keys, states and tags: what tells sandboxes apart and proves whose they are.
#include "core/sandbox_record.hpp"

#include "base/utf8.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace sandboxd;
using namespace sandboxd::core;

namespace {

sandbox_record record_of(std::string task = "t") {
    sandbox_record record;
    record.key = {"p", std::move(task)};
    record.creation_id = "c1";
    record.attempt = 2;
    return record;
}

cloud::sandbox_info tagged(const std::map<std::string, std::string>& tags) {
    cloud::sandbox_info info;
    info.tags = tags;
    return info;
}

} // namespace

TEST_CASE("record: states have the names of the protocol, both ways") {
    const std::pair<life_state, const char*> names[] = {
        {life_state::absent, "absent"},     {life_state::creating, "creating"},
        {life_state::starting, "starting"}, {life_state::running, "running"},
        {life_state::stopping, "stopping"}, {life_state::stopped, "stopped"},
        {life_state::failed, "failed"},     {life_state::unknown, "unknown"},
    };
    for (const auto& [state, name] : names) {
        CHECK(to_string(state) == name);
        CHECK(life_state_from(name) == state);
    }
    CHECK(life_state_from("") == life_state::unknown);
    CHECK(life_state_from("Running") == life_state::unknown);
}

TEST_CASE("record: the platform's states, and which of them cost money") {
    using cloud::sandbox_state;
    CHECK(life_state_of(sandbox_state::creating) == life_state::creating);
    CHECK(life_state_of(sandbox_state::starting) == life_state::starting);
    CHECK(life_state_of(sandbox_state::running) == life_state::running);
    CHECK(life_state_of(sandbox_state::stopping) == life_state::stopping);
    CHECK(life_state_of(sandbox_state::stopped) == life_state::stopped);
    CHECK(life_state_of(sandbox_state::failed) == life_state::failed);
    CHECK(life_state_of(sandbox_state::deleted) == life_state::absent);
    CHECK(life_state_of(sandbox_state::unknown) == life_state::unknown);
    for (const life_state state :
         {life_state::creating, life_state::starting, life_state::running, life_state::stopping}) {
        CHECK(is_active(state));
    }
    for (const life_state state :
         {life_state::absent, life_state::stopped, life_state::failed, life_state::unknown}) {
        CHECK_FALSE(is_active(state));
    }
}

TEST_CASE("record: no two keys share a digest") {
    const sandbox_key keys[] = {{"a", "bc"}, {"ab", "c"},  {"abc", ""},  {"", "abc"},
                                {"1:a", ""}, {"", "1:a"},  {"a/b", "c"}, {"a", "b/c"},
                                {"p", "t"},  {"p", "t\n"}, {"P", "t"},   {"p", "\xC3\xA4"}};
    std::set<std::string> digests;
    for (const sandbox_key& key : keys) {
        const std::string digest = key_digest(key);
        CHECK(digest.size() == 32);
        digests.insert(digest);
    }
    CHECK(digests.size() == std::size(keys));
    // printf '1:pt' | sha256sum: what an older daemon has written must be found again.
    CHECK(key_digest({"p", "t"}) == "6bb5da69d64087e0ba5496ffcd6a93fa");
}

TEST_CASE("record: keys are the same only byte for byte") {
    CHECK(sandbox_key{"a", "b"} == sandbox_key{"a", "b"});
    CHECK(sandbox_key{"a", "b"} != sandbox_key{"a", "B"});
    CHECK(sandbox_key{"a", "b"} < sandbox_key{"a", "c"});
    CHECK(sandbox_key{"a", "z"} < sandbox_key{"b", "a"});
    CHECK(describe({"/home/ada", "default"}) == "/home/ada/default");
}

TEST_CASE("record: its tags") {
    const auto tags = tags_for(record_of(), "inst");
    CHECK(tags.size() == 5);
    CHECK(tags.at("owner") == "deepinfra-sandboxd");
    CHECK(tags.at("sandboxd_instance") == "inst");
    CHECK(tags.at("sandboxd_key") == key_digest({"p", "t"}));
    CHECK(tags.at("sandboxd_creation") == "c1.2");
    CHECK(tags.at("hermes_task_id") == "t");
}

TEST_CASE("record: a long task is shortened in the tag that is for people, as text") {
    std::string task;
    for (int i = 0; i < 100; ++i)
        task += "\xE2\x82\xAC"; // 128 is in the middle of one
    const auto tags = tags_for(record_of(task), "inst");
    CHECK(tags.at("hermes_task_id").size() <= 128);
    CHECK(tags.at("hermes_task_id").size() >= 125);
    CHECK(is_utf8(tags.at("hermes_task_id")));
}

TEST_CASE("record: ownership is proved by owner and instance together") {
    const auto ours = tags_for(record_of(), "inst");
    CHECK(is_made_by(tagged(ours), "inst"));
    CHECK_FALSE(is_made_by(tagged(ours), "other"));
    CHECK_FALSE(is_made_by(tagged({}), "inst"));
    CHECK_FALSE(is_made_by(tagged({}), ""));
    for (const char* missing : {"owner", "sandboxd_instance"}) {
        auto tags = ours;
        tags.erase(missing);
        CHECK_FALSE(is_made_by(tagged(tags), "inst"));
    }
    auto stranger = ours;
    stranger["owner"] = "deepinfra-sandboxd2";
    CHECK_FALSE(is_made_by(tagged(stranger), "inst"));
}

TEST_CASE("record: made for this intent, by whichever attempt") {
    const sandbox_record record = record_of();
    auto tags = tags_for(record, "inst");
    CHECK(is_made_for(tagged(tags), record, "inst"));
    tags["sandboxd_creation"] = "c1.1";
    CHECK(is_made_for(tagged(tags), record, "inst"));
    CHECK_FALSE(is_made_for(tagged(tags), record, "other"));
    for (const char* other : {"c11.1", "c1", "c2.1", "", "xc1.1"}) {
        tags["sandboxd_creation"] = other;
        CHECK_FALSE(is_made_for(tagged(tags), record, "inst"));
    }
}

TEST_CASE("record: the time-out a sandbox was made with goes with it") {
    sandbox_record record;
    cloud::sandbox_info info;
    info.tags = tags_for(record, "inst");
    CHECK_FALSE(info.tags.contains(std::string(tag::timeout)));
    CHECK(timeout_tag(info) == std::chrono::seconds(0));
    record.timeout = std::chrono::seconds(7'200);
    info.tags = tags_for(record, "inst");
    CHECK(timeout_tag(info) == record.timeout);
    for (const char* text : {"", "-1", "5s", " 5", "99999999999"}) {
        info.tags[std::string(tag::timeout)] = text;
        CHECK(timeout_tag(info) == std::chrono::seconds(0));
    }
}

TEST_CASE("record: who knew an earlier sandbox has lost its files") {
    sandbox_record record = record_of();
    record.generation = 7;
    record.first_boot = 5; // boots 5, 6 and 7 were of the same
    CHECK(is_new_since(record, 1));
    CHECK(is_new_since(record, 4));
    CHECK_FALSE(is_new_since(record, 5));
    CHECK_FALSE(is_new_since(record, 7));
    CHECK_FALSE(is_new_since(record, 0)); // there was none
    record.first_boot = 0;                // of an older daemon, which kept no account of it
    CHECK_FALSE(is_new_since(record, 4));
}
