// What outlives the daemon: the records' text, what is kept of a damaged file, and the instance id.
#include "store/instance.hpp"
#include "store/key_book.hpp"
#include "store/state_file.hpp"
#include "store/state_store.hpp"
#include "temp_dir.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::store;
using core::sandbox_record;
using test::content_of;
using test::temp_dir;
using test::write_file;
namespace fs = std::filesystem;

namespace {

sandbox_record full_record(std::string task = "session:42") {
    sandbox_record record;
    record.key = {"/home/\xC3\xA4\"da\\", std::move(task)};
    record.persistent = false;
    record.plan = "large";
    record.base_url = "https://api.deepinfra.com";
    record.fingerprint = "5c1f0a9be2d34c77";
    record.creation_id = "s-1";
    record.attempt = 3;
    record.create_pending = true;
    record.sandbox_id = "sb_1";
    record.state = core::life_state::stopping;
    record.generation = std::numeric_limits<std::uint64_t>::max();
    record.first_boot = 7;
    record.created_at = 1'764'400'000;
    record.runs_on = "large";
    record.stopped_since = 1'764'400'001;
    record.usage = {12.5,
                    0.25,
                    1.5,
                    core::milliseconds(77),
                    core::milliseconds(76),
                    3.5,
                    core::milliseconds(78)};
    record.owner = {4711, 99, "boot"};
    record.owner_gone = true;
    record.state_lost = true;
    record.untried = true;
    record.doubts = {{"s-0", 5}, {"s-1", 0}};
    record.holders = {{4711, 99, "boot"}, {4712, 100, "boot"}};
    record.timeout = std::chrono::seconds(3600);
    record.idle_stop = std::chrono::seconds(900);
    return record;
}

saved_state with(std::vector<sandbox_record> records) {
    return {std::move(records), {}, {}, {}};
}

bool same(const sandbox_record& a, const sandbox_record& b) {
    return a.key == b.key && a.persistent == b.persistent && a.plan == b.plan &&
           a.base_url == b.base_url && a.fingerprint == b.fingerprint &&
           a.creation_id == b.creation_id && a.attempt == b.attempt &&
           a.create_pending == b.create_pending && a.sandbox_id == b.sandbox_id &&
           a.state == b.state && a.generation == b.generation && a.first_boot == b.first_boot &&
           a.created_at == b.created_at && a.runs_on == b.runs_on &&
           a.stopped_since == b.stopped_since && a.usage.usd == b.usage.usd &&
           a.usage.counted_to == b.usage.counted_to && a.usage.saving_s == b.usage.saving_s &&
           a.owner.pid == b.owner.pid && a.owner.start_time == b.owner.start_time &&
           a.owner.boot == b.owner.boot && a.owner_gone == b.owner_gone &&
           a.state_lost == b.state_lost && a.untried == b.untried &&
           a.doubts.size() == b.doubts.size() && a.holders.size() == b.holders.size() &&
           a.usage.seen_at == b.usage.seen_at && a.timeout == b.timeout &&
           a.idle_stop == b.idle_stop;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
    const auto at = text.find(what);
    REQUIRE(at != std::string::npos);
    return text.replace(at, what.size(), by);
}

// Runs `save` to its end; what it throws comes out.
void save(boost::asio::io_context& io, state_store& store, std::vector<sandbox_record> records) {
    std::exception_ptr problem;
    bool done = false;
    boost::asio::co_spawn(io, store.save(with(std::move(records))), [&](std::exception_ptr error) {
        problem = error;
        done = true;
    });
    io.restart();
    io.run();
    REQUIRE(done);
    if (problem) std::rethrow_exception(problem);
}

const std::string machine = "0123456789abcdef0123456789abcdef";

} // namespace

TEST_CASE("state file: every field comes back") {
    const std::string text = format_state(with({full_record(), sandbox_record{}}));
    CHECK(text.ends_with("\n"));
    const parsed_state parsed = parse_state(text);
    CHECK(parsed.rejected.empty());
    REQUIRE(parsed.state.records.size() == 2);
    CHECK(same(parsed.state.records[0], full_record()));
    CHECK(same(parsed.state.records[1], sandbox_record{}));
    CHECK(format_state(parsed.state) == text);
}

TEST_CASE("state file: every state comes back") {
    for (int i = 0; i <= static_cast<int>(core::life_state::unknown); ++i) {
        sandbox_record record = full_record();
        record.state = static_cast<core::life_state>(i);
        CHECK(parse_state(format_state(with({record}))).state.records.at(0).state == record.state);
    }
}

TEST_CASE("state file: no records, and fields of a later version-1 daemon") {
    CHECK(parse_state(format_state({})).state.records.empty());
    const std::string text = replaced(
        replaced(format_state(with({full_record()})), "{\"version\"", "{\"more\":[],\"version\""),
        "\"profile\"", "\"also\":{},\"profile\"");
    CHECK(same(parse_state(text).state.records.at(0), full_record()));
}

TEST_CASE("state file: what makes no sense as a whole is an error") {
    for (const char* text : {"", "x", "[]", "7", "null", "{}", R"({"version":1})",
                             R"({"sandboxes":[]})", R"({"version":"1","sandboxes":[]})",
                             R"({"version":1.0,"sandboxes":[]})", R"({"version":0,"sandboxes":[]})",
                             R"({"version":-1,"sandboxes":[]})", R"({"version":1,"sandboxes":{}})",
                             R"({"version":1,"sandboxes":[]}})", R"({"version":1,"sandboxes":[)"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(parse_state(text), unreadable_state);
    }
    const std::string whole = format_state(with({full_record()}));
    for (std::size_t size = 0; size + 2 < whole.size(); size += 7) {
        CHECK_THROWS_AS(parse_state(whole.substr(0, size)), unreadable_state);
    }
}

TEST_CASE("state file: a newer version is not guessed at") {
    CHECK_THROWS_WITH_AS(parse_state(R"({"version":2,"sandboxes":[]})"),
                         doctest::Contains("newer daemon (version 2)"), unreadable_state);
}

TEST_CASE("state file: one bad record blocks no other") {
    const std::string good =
        format_state(with({full_record("a"), full_record("b"), full_record("c")}));
    struct row {
        const char* what;
        const char* by;
    };
    for (const row& each :
         {row{"\"task\":\"b\"", "\"task\":7"}, row{"\"task\":\"b\"", "\"tusk\":\"b\""},
          row{"\"task\":\"b\",\"persistent\":false", "\"task\":\"b\",\"persistent\":\"no\""},
          row{"\"task\":\"b\",\"persistent\":false", "\"task\":\"b\",\"persistent\":null"}}) {
        CAPTURE(each.by);
        const parsed_state parsed = parse_state(replaced(good, each.what, each.by));
        REQUIRE(parsed.state.records.size() == 2);
        CHECK(parsed.state.records[0].key.task == "a");
        CHECK(parsed.state.records[1].key.task == "c");
        REQUIRE(parsed.rejected.size() == 1);
        CHECK(parsed.rejected[0].starts_with("record 1: "));
    }
    const parsed_state parsed = parse_state(R"({"version":1,"sandboxes":[7,null,"x",[],{}]})");
    CHECK(parsed.state.records.empty());
    CHECK(parsed.rejected.size() == 5);
}

TEST_CASE("state file: numbers out of range are not taken") {
    const std::string good = format_state(with({full_record()}));
    for (const auto& [what, by] :
         {std::pair{"\"attempt\":3", "\"attempt\":3000000000"},
          std::pair{"\"attempt\":3", "\"attempt\":1.5"},
          std::pair{"\"generation\":18446744073709551615", "\"generation\":-1"},
          std::pair{"\"created_at\":1764400000", "\"created_at\":\"now\""}}) {
        CAPTURE(by);
        CHECK(parse_state(replaced(good, what, by)).rejected.size() == 1);
    }
}

TEST_CASE("state file: a second record for one key is set aside") {
    sandbox_record other = full_record();
    other.sandbox_id = "sb_2";
    const parsed_state parsed = parse_state(format_state(with({full_record(), other})));
    REQUIRE(parsed.state.records.size() == 1);
    CHECK(parsed.state.records[0].sandbox_id == "sb_1");
    REQUIRE(parsed.rejected.size() == 1);
    CHECK(parsed.rejected[0].find("same key") != std::string::npos);
}

TEST_CASE("state file: a state from the future is one nobody knows") {
    const std::string text =
        replaced(format_state(with({full_record()})), "\"stopping\"", "\"hibernating\"");
    CHECK(parse_state(text).state.records.at(0).state == core::life_state::unknown);
}

TEST_CASE("state store: what was saved is loaded by the next daemon") {
    const temp_dir dir;
    boost::asio::io_context io;
    {
        state_store store(io.get_executor(), dir.path());
        CHECK(store.load().state.records.empty());
        save(io, store, {full_record("a")});
        save(io, store, {full_record("a"), full_record("b")});
        CHECK(store.trouble().empty());
    }
    struct stat status {};
    REQUIRE(::stat((dir / "state.json").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    state_store next(io.get_executor(), dir.path());
    const loaded_state loaded = next.load();
    CHECK(loaded.complaints.empty());
    REQUIRE(loaded.state.records.size() == 2);
    CHECK(same(loaded.state.records[1], full_record("b")));
}

TEST_CASE("state store: saves asked for at once all end, and the last one stands") {
    const temp_dir dir;
    boost::asio::io_context io;
    state_store store(io.get_executor(), dir.path());
    int ended = 0;
    for (int i = 0; i < 50; ++i) {
        boost::asio::co_spawn(io, store.save(with({full_record(std::to_string(i))})),
                              [&](std::exception_ptr error) { ended += error ? 0 : 1; });
    }
    io.run();
    CHECK(ended == 50);
    CHECK(store.load().state.records.at(0).key.task == "49");
}

TEST_CASE("state store: a write that fails is told, kept in mind, and made good by the next") {
    const temp_dir dir;
    boost::asio::io_context io;
    const fs::path home = dir / "state";
    state_store store(io.get_executor(), home); // is not there yet
    CHECK_THROWS_WITH(save(io, store, {full_record()}), doctest::Contains("state"));
    CHECK_FALSE(store.trouble().empty());
    fs::create_directory(home);
    save(io, store, {full_record()});
    CHECK(store.trouble().empty());
    CHECK(store.load().state.records.size() == 1);
}

TEST_CASE("state store: an unreadable file is kept under another name, never over an older one") {
    const temp_dir dir;
    boost::asio::io_context io;
    state_store store(io.get_executor(), dir.path());
    for (const char* name : {"state.json.bad", "state.json.bad.2", "state.json.bad.3"}) {
        const std::string garbage = std::string("garbage for ") + name;
        write_file(dir / "state.json", garbage);
        const loaded_state loaded = store.load();
        CHECK(loaded.state.records.empty());
        REQUIRE(loaded.complaints.size() == 1);
        CHECK(loaded.complaints[0].find((dir / name).string()) != std::string::npos);
        CHECK(content_of(dir / name) == garbage);
        CHECK_FALSE(fs::exists(dir / "state.json"));
    }
    save(io, store, {full_record()});
    CHECK(store.load().complaints.empty());
    CHECK(content_of(dir / "state.json.bad") == "garbage for state.json.bad");
}

TEST_CASE("state store: the file of a newer daemon is kept whole") {
    const temp_dir dir;
    boost::asio::io_context io;
    state_store store(io.get_executor(), dir.path());
    const std::string newer = R"({"version":9,"sandboxes":[{"shape":"new"}]})";
    write_file(dir / "state.json", newer);
    const loaded_state loaded = store.load();
    REQUIRE(loaded.complaints.size() == 1);
    CHECK(loaded.complaints[0].find("newer daemon (version 9)") != std::string::npos);
    CHECK(content_of(dir / "state.json.bad") == newer);
}

TEST_CASE("state store: a partly bad file is used, and kept as it was") {
    const temp_dir dir;
    boost::asio::io_context io;
    state_store store(io.get_executor(), dir.path());
    const std::string text = replaced(format_state(with({full_record("a"), full_record("b")})),
                                      "\"task\":\"a\"", "\"task\":1");
    write_file(dir / "state.json", text);
    const loaded_state loaded = store.load();
    REQUIRE(loaded.state.records.size() == 1);
    CHECK(loaded.state.records[0].key.task == "b");
    REQUIRE(loaded.complaints.size() == 1);
    CHECK(loaded.complaints[0].find("record 0") != std::string::npos);
    CHECK(loaded.complaints[0].find("state.json.partly-bad") != std::string::npos);
    save(io, store, loaded.state.records);
    CHECK(content_of(dir / "state.json.partly-bad") == text);
    CHECK(store.load().complaints.empty());
    write_file(dir / "state.json", text);
    CHECK(store.load().complaints.size() == 1);
    CHECK(content_of(dir / "state.json.partly-bad") == text); // not overwritten
}

TEST_CASE("state store: a file that cannot even be opened stops the start") {
    const temp_dir dir;
    boost::asio::io_context io;
    state_store store(io.get_executor(), dir.path());
    fs::create_directory(dir / "state.json");
    CHECK_THROWS_AS(store.load(), std::system_error);
}

TEST_CASE("instance: made once") {
    const temp_dir dir;
    const instance made = load_instance(dir.path(), machine);
    CHECK(made.id.size() == 32);
    CHECK(made.id.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(made.complaints.empty());
    const instance again = load_instance(dir.path(), machine);
    CHECK(again.id == made.id);
    CHECK(again.complaints.empty());
    const temp_dir other;
    CHECK(load_instance(other.path(), machine).id != made.id);
}

TEST_CASE("instance: a machine without an id has one too") {
    const temp_dir dir;
    const std::string id = load_instance(dir.path(), "").id;
    CHECK(load_instance(dir.path(), "").id == id);
}

TEST_CASE("instance: a machine that gets its id later, or loses it, is the same one") {
    const temp_dir dir;
    const std::string id = load_instance(dir.path(), "").id;
    write_file(dir / "state.json", "kept");
    const instance later = load_instance(dir.path(), machine);
    CHECK(later.id == id);
    CHECK(later.complaints.empty());
    CHECK(load_instance(dir.path(), "").id == id);
    CHECK(content_of(dir / "state.json") == "kept");
    // From then on another machine is told apart.
    CHECK(load_instance(dir.path(), "ffff" + machine.substr(4)).id != id);
}

TEST_CASE("instance: a home cloned to another machine becomes another daemon there") {
    const temp_dir dir;
    const std::string id = load_instance(dir.path(), machine).id;
    const std::string state = format_state(with({full_record()}));
    write_file(dir / "state.json", state);
    const instance cloned = load_instance(dir.path(), "ffff" + machine.substr(4));
    CHECK(cloned.id != id);
    CHECK(cloned.id.size() == 32);
    CHECK(cloned.complaints.size() == 1);
    CHECK(content_of(dir / "instance.bad").find(id) != std::string::npos);
    CHECK(content_of(dir / "state.json.bad") == state);
    CHECK_FALSE(fs::exists(dir / "state.json"));
    const instance settled = load_instance(dir.path(), "ffff" + machine.substr(4));
    CHECK(settled.id == cloned.id);
    CHECK(settled.complaints.empty());
}

TEST_CASE("instance: an unreadable file is set aside, and the state stays") {
    for (const std::string& text :
         {std::string(), std::string("\n"), std::string("nonsense"), "0123 " + machine,
          std::string(32, 'g') + " " + machine, std::string(32, 'A') + " " + machine,
          std::string(33, 'a') + " " + machine, std::string(5'000, 'a')}) {
        CAPTURE(text.size());
        const temp_dir dir;
        write_file(dir / "instance", text);
        write_file(dir / "state.json", "kept");
        const instance made = load_instance(dir.path(), machine);
        CHECK(made.id.size() == 32);
        REQUIRE(made.complaints.size() == 1);
        CHECK(made.complaints[0].find("instance.bad") != std::string::npos);
        CHECK(content_of(dir / "instance.bad") == text);
        CHECK(content_of(dir / "state.json") == "kept");
        CHECK(load_instance(dir.path(), machine).id == made.id);
    }
}

TEST_CASE("instance: the machine's id is not shown as it is") {
    const std::string hashed = hashed_machine_id();
    const std::string plain = content_of("/etc/machine-id");
    if (plain.empty()) {
        CHECK(hashed.empty());
    } else {
        CHECK(hashed.size() == 32);
        CHECK(plain.find(hashed) == std::string::npos);
        CHECK(hashed == hashed_machine_id());
    }
}

TEST_CASE("state: costs and prices come back, and damaged ones take no sandbox with them") {
    saved_state state = with({full_record()});
    state.ledger = {2026333, 1.25, 20.5, 0.5, 3.5};
    state.prices = {1'764'400'000, {{"small", 0.02}, {"large", 0.08}}};
    state.clock = {"boot", core::milliseconds(5), core::milliseconds(7)};
    const std::string text = format_state(state);
    const parsed_state parsed = parse_state(text);
    CHECK(parsed.rejected.empty());
    CHECK(parsed.state.ledger.today_usd == 1.25);
    CHECK(parsed.state.ledger.saved_usd == 3.5);
    CHECK(parsed.state.prices.at == state.prices.at);
    CHECK(parsed.state.clock.boot == "boot");
    CHECK(parsed.state.clock.elapsed == core::milliseconds(5));
    CHECK(parsed.state.clock.cloud == core::milliseconds(7));
    CHECK(parsed.state.prices.usd_per_hour == state.prices.usd_per_hour);
    const parsed_state damaged =
        parse_state(replaced(text, "\"today_usd\":", "\"today_usd\":[],\"x\":"));
    CHECK(damaged.state.records.size() == 1);
    CHECK(damaged.rejected.size() == 1);
}

TEST_CASE("state: a file of a daemon that kept no account is read") {
    constexpr std::string_view old =
        R"({"version":1,"sandboxes":[{"profile":"p","task":"t","persistent":true,"plan":"","base_url":"u",)"
        R"("fingerprint":"f","creation_id":"c","attempt":1,"create_pending":false,"sandbox_id":"sb_1",)"
        R"("state":"stopped","generation":3,"created_at":5}]})";
    const parsed_state parsed = parse_state(old);
    CHECK(parsed.rejected.empty());
    REQUIRE(parsed.state.records.size() == 1);
    CHECK(parsed.state.records[0].sandbox_id == "sb_1");
    CHECK_FALSE(parsed.state.records[0].state_lost);
    CHECK_FALSE(core::is_new_since(parsed.state.records[0], 1));
    CHECK(parsed.state.prices.at == 0);
}

TEST_CASE("key book: the keys of digests, over restarts, damage and growth") {
    const temp_dir dir;
    const core::sandbox_key odd{"/home/\xC3\xA4\"da\\", "task\n1"};
    {
        key_book book(dir.path());
        book.load();
        CHECK_FALSE(book.find(core::key_digest(odd)));
        book.add(odd);
        book.add(odd);
        book.add({"p", "t"});
        CHECK(book.find(core::key_digest(odd)) == odd);
    }
    const fs::path file = dir.path() / "sandbox-keys";
    const std::string text = content_of(file);
    CHECK(std::count(text.begin(), text.end(), '\n') == 2);
    write_file(file, "{}\nnothing\n" + text + "{\"profile\":\"to");
    key_book torn(dir.path());
    torn.load();
    CHECK(torn.find(core::key_digest(odd)) == odd);
    torn.add({"p", "new"});
    key_book again(dir.path());
    again.load();
    CHECK(again.find(core::key_digest({"p", "new"})).has_value());

    std::string many;
    for (std::size_t i = 0; i < 2 * key_book::most + 1; ++i) {
        many += "{\"profile\":\"p\",\"task\":\"" + std::to_string(i) + "\"}\n";
    }
    write_file(file, many);
    key_book large(dir.path());
    large.load();
    CHECK_FALSE(large.find(core::key_digest({"p", "0"})));
    CHECK(large.find(core::key_digest({"p", std::to_string(2 * key_book::most)})).has_value());
    CHECK(content_of(file).size() < many.size());
}
