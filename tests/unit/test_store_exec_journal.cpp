// The commands that the daemon knows, on disk: every field comes back, torn lines are no harm.
#include "store/exec_format.hpp"
#include "store/exec_journal.hpp"

#include "temp_dir.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

using namespace sandboxd;
using namespace sandboxd::core;
using namespace sandboxd::store;

namespace {

exec_record ended(const std::string& id) {
    exec_record record;
    record.exec_id = id;
    record.digest = "d\"1";
    record.key = {"pro\nfile", "täsk"};
    record.client = {4711, 1ULL << 40, "boot"};
    record.timeout = milliseconds(1'500);
    record.phase = exec_phase::ended;
    record.at = 1'800'000'000'123;
    record.asked_in = 5;
    record.created = true;
    record.sandbox_id = "sb_1";
    record.generation = 7;
    record.attached = true;
    record.safe = 1ULL << 40;
    record.exit.reason = exit_reason::timed_out;
    record.exit.returncode = 124;
    record.exit.ran = started::unknown;
    record.exit.message = "why";
    record.exit.kill_unconfirmed = true;
    record.exit.background = true;
    record.exit.error.emplace(error_name::outcome_unknown, "why");
    record.output_end = 99;
    record.elapsed = milliseconds(42);
    record.forgotten = true;
    return record;
}

} // namespace

TEST_CASE("exec journal: every field comes back") {
    const exec_record before = ended("a");
    const std::string line = format_exec_record(before);
    CHECK(line.find('\n') == std::string::npos);
    const auto after = parse_exec_record(line);
    REQUIRE(after);
    CHECK(after->exec_id == before.exec_id);
    CHECK(after->digest == before.digest);
    CHECK(after->key == before.key);
    CHECK(after->client.pid == 4711);
    CHECK(after->client.start_time == 1ULL << 40);
    CHECK(after->client.boot == "boot");
    CHECK(after->timeout == before.timeout);
    CHECK(after->phase == before.phase);
    CHECK(after->at == before.at);
    CHECK(after->asked_in == 5);
    CHECK(after->created);
    CHECK(after->sandbox_id == before.sandbox_id);
    CHECK(after->generation == before.generation);
    CHECK(after->attached == before.attached);
    CHECK(after->safe == before.safe);
    CHECK(after->exit.reason == before.exit.reason);
    CHECK(after->exit.returncode == before.exit.returncode);
    CHECK(after->exit.ran == before.exit.ran);
    CHECK(after->exit.message == before.exit.message);
    CHECK(after->exit.kill_unconfirmed == before.exit.kill_unconfirmed);
    CHECK(after->exit.background);
    REQUIRE(after->exit.error);
    CHECK(after->exit.error->name() == error_name::outcome_unknown);
    CHECK(after->output_end == before.output_end);
    CHECK(after->elapsed == before.elapsed);
    CHECK(after->forgotten == before.forgotten);
}

TEST_CASE("exec journal: a message that is no text costs no record") {
    exec_record before = ended("a");
    before.exit.message = "a\xff";
    const auto after = parse_exec_record(format_exec_record(before));
    REQUIRE(after);
    CHECK(after->exit.message == "a\xef\xbf\xbd");
}

TEST_CASE("exec journal: no part of a line is taken for a record") {
    const std::string line = format_exec_record(ended("a"));
    for (std::size_t size = 0; size < line.size(); ++size) {
        CHECK_FALSE(parse_exec_record(line.substr(0, size)));
    }
    CHECK_FALSE(parse_exec_record("{}"));
    CHECK_FALSE(parse_exec_record("[1]"));
}

TEST_CASE(
    "exec journal: the last word counts, a torn tail does not, and nothing after it is lost") {
    const test::temp_dir dir;
    const std::filesystem::path file = dir.path() / "execs.journal";
    {
        exec_journal journal(dir.path());
        CHECK(journal.load().empty());
        exec_record a = ended("a");
        a.phase = exec_phase::sent;
        journal.append(a);
        journal.append(ended("b"));
        journal.append(ended("a"));
        CHECK(journal.trouble().empty());
    }
    std::ofstream(file, std::ios::app | std::ios::binary) << R"({"id":"c","dig)";
    exec_journal journal(dir.path());
    const auto records = journal.load();
    REQUIRE(records.size() == 2);
    CHECK(records[0].exec_id == "a");
    CHECK(records[0].phase == exec_phase::ended);
    CHECK(records[1].exec_id == "b");
    journal.rewrite(records);
    journal.append(ended("d"));
    CHECK(exec_journal(dir.path()).load().size() == 3);
    const std::string text = test::content_of(file);
    CHECK(std::count(text.begin(), text.end(), '\n') == 3);
}

TEST_CASE("exec journal: it is overgrown when most of it is old") {
    const test::temp_dir dir;
    exec_journal journal(dir.path());
    CHECK_FALSE(journal.overgrown(0));
    for (int i = 0; i < 5'000; ++i) {
        journal.append(ended("a"));
    }
    CHECK(journal.overgrown(1));
    CHECK_FALSE(journal.overgrown(5'000));
    journal.rewrite({ended("a")});
    CHECK_FALSE(journal.overgrown(1));
}
