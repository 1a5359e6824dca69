// Putting the shim into a sandbox, and short calls of it, against a platform that does what the
// test says: no wait without end, and no verdict on the shim that nothing in the sandbox has
// spoken.
#include "cloud_server.hpp"
#include "exec/shim_keeper.hpp"
#include "temp_dir.hpp"

using namespace sandboxd;
using namespace sandboxd::cloud::test;
using sandboxd::test::temp_dir;

namespace {

using answer = std::function<asio::awaitable<void>(peer&)>;

exec::keeper_options impatient() {
    exec::keeper_options options;
    options.answer = std::chrono::milliseconds(50);
    options.install = std::chrono::milliseconds(200);
    return options;
}

// Uploads are taken; each exec is noted by its argv, and answered by a script of its own.
struct bench {
    explicit bench(std::vector<answer> in_turn)
        : answers(std::move(in_turn)), server(io, [this](peer& one) { return serve(one); }),
          account(io.get_executor(), server.url(), secret("k-canary"), directory.path()),
          keeper(io.get_executor(), account, impatient()) {}

    asio::awaitable<void> serve(peer& one) {
        while (const auto request = co_await one.request()) {
            if (request->method() == http::verb::put) {
                ++uploads;
                co_await one.write(http_answer(200, "{}"));
                continue;
            }
            const std::size_t n = execs++;
            REQUIRE(n < answers.size());
            co_await answers[n](one);
        }
    }
    exec::install_outcome install() { return await(io, keeper.install("sb_1")); }
    exec::shim_reply acknowledge() {
        return await(io, keeper.call("sb_1", {keeper.path(), "ack", "e", "7"}, "acked"));
    }

    temp_dir directory;
    asio::io_context io;
    std::vector<answer> answers;
    std::size_t execs = 0;
    int uploads = 0;
    scripted_server server;
    sandbox::account account;
    exec::shim_keeper keeper;
};

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        out += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    return out;
}

// A whole answer: what is printed, then the platform's last line.
answer ends(std::string_view printed, std::string last) {
    std::string all = stream_header;
    if (!printed.empty()) {
        all += chunk("{\"stdout\":\"" + escaped(printed) + "\"}\n");
    }
    all += chunk(last + "\n") + last_chunk;
    return [all](peer& one) -> asio::awaitable<void> { co_await one.write(all); };
}

// Begins, and says no more until it is given up.
answer stalls(std::string_view printed = {}) {
    std::string all = stream_header;
    if (!printed.empty()) {
        all += chunk("{\"stdout\":\"" + escaped(printed) + "\"}\n");
    }
    return [all](peer& one) -> asio::awaitable<void> {
        co_await one.write(all);
        co_await one.read_once();
    };
}

const std::string well = R"({"returncode":0})";
const std::string hello_of_probe = "deepinfra-shim/1 probe build=x arch=x86_64 uid=0 boot=b\n";
const std::string hello_of_ack = "deepinfra-shim/1 ack build=x arch=x86_64 uid=0 boot=b\n";

answer probes(bool ok = true) {
    return ends(hello_of_probe + "probe ok=" + (ok ? "1" : "0") + " kernel=x pidns=1\n", well);
}
answer acknowledges() {
    return ends(hello_of_ack + "acked id=e state=running\n", well);
}

} // namespace

TEST_CASE("shim keeper: a short call that is stalled is a failure, and can be made again") {
    for (const std::string& said : {std::string(), hello_of_ack}) {
        bench b({stalls(said), acknowledges()});
        const exec::shim_reply late = b.acknowledge();
        REQUIRE(late.failure);
        CHECK(late.failure->kind == cloud::failure_kind::interrupted);
        CHECK_FALSE(late.note);
        CHECK(b.uploads == 0); // says nothing of the shim
        CHECK(b.acknowledge().note);
    }
}

TEST_CASE("shim keeper: a stalled installation is a failure, for all who wait for it") {
    bench b({stalls(), probes()});
    std::optional<exec::install_outcome> other;
    asio::co_spawn(b.io, b.keeper.install("sb_1"),
                   [&other](std::exception_ptr, exec::install_outcome outcome) {
                       other = std::move(outcome);
                   });
    const exec::install_outcome mine = b.install();
    run_until(b.io, [&other] { return other.has_value(); });
    for (const exec::install_outcome& each : {mine, *other}) {
        CHECK_FALSE(each.installed);
        CHECK(each.failure);
        CHECK(each.unusable.empty());
    }
    CHECK(b.uploads == 1);
    CHECK(b.install().installed);
}

TEST_CASE("shim keeper: only what the sandbox itself says makes it one without the shim") {
    SUBCASE("the platform's error line") {
        bench b({ends("", R"({"error":"internal error, try again"})"), probes()});
        const exec::install_outcome first = b.install();
        REQUIRE(first.failure);
        CHECK(first.failure->kind == cloud::failure_kind::unreachable);
        CHECK(first.failure->message.find("try again") != std::string::npos);
        CHECK_FALSE(b.keeper.unusable("sb_1"));
        CHECK(b.install().installed);
    }
    SUBCASE("one exit with another code") {
        bench b({ends("", R"({"returncode":1})"), probes()});
        CHECK(b.install().failure);
        CHECK_FALSE(b.keeper.unusable("sb_1"));
        CHECK(b.install().installed);
    }
    SUBCASE("a file that cannot be executed") {
        bench b({ends("", R"({"returncode":126})")});
        CHECK_FALSE(b.install().unusable.empty());
        CHECK(b.keeper.unusable("sb_1"));
        CHECK(b.keeper.all_unusable().size() == 1);
    }
    SUBCASE("the shim") {
        bench b({probes(false), ends("", R"({"error":"internal error"})"), probes()});
        CHECK_FALSE(b.install().unusable.empty());
        CHECK(b.install().failure); // takes nothing back
        CHECK(b.keeper.unusable("sb_1"));
        CHECK(b.install().installed);
        CHECK_FALSE(b.keeper.unusable("sb_1"));
    }
}

TEST_CASE("shim keeper: a shim that says nothing is put back, once a call") {
    SUBCASE("and answers") {
        bench b({ends("", R"({"returncode":127})"), probes(), acknowledges()});
        CHECK(b.acknowledge().note);
        CHECK(b.uploads == 1);
    }
    SUBCASE("and says nothing again") {
        bench b({ends("", R"({"returncode":127})"), probes(), ends("", R"({"returncode":127})")});
        CHECK(b.acknowledge().silent());
        CHECK(b.uploads == 1);
        CHECK(b.execs == 3);
    }
    SUBCASE("unless it has spoken") {
        bench b({ends(hello_of_ack, well)});
        CHECK(b.acknowledge().spoke);
        CHECK(b.uploads == 0);
    }
}

TEST_CASE(
    "shim keeper: the spools of a sandbox share one bound, and what ends gives its part back") {
    bench b({});
    std::vector<exec::spool_share> shares;
    std::uint64_t all = 0;
    for (int i = 0; i < 500; ++i) {
        shares.push_back(b.keeper.share_of_spool("sb_1"));
        REQUIRE(shares.back().bytes() >= exec::shim_keeper::smallest_spool);
        all += shares.back().bytes();
    }
    CHECK(shares.front().bytes() == 256U << 20);
    CHECK(shares.back().bytes() == exec::shim_keeper::smallest_spool);
    CHECK(all <= (1ULL << 30) + 500 * exec::shim_keeper::smallest_spool);
    CHECK(b.keeper.share_of_spool("sb_2").bytes() == 256U << 20);
    shares.clear();
    CHECK(b.keeper.share_of_spool("sb_1").bytes() == 256U << 20);
}

TEST_CASE("shim keeper: of a share only what a spool can still hold is held, in that boot") {
    bench b({});
    b.keeper.note_use("sb_1", 1);
    std::vector<exec::spool_share> shares;
    for (int i = 0; i < 100; ++i) {
        shares.push_back(b.keeper.share_of_spool("sb_1"));
        const std::uint64_t given = shares.back().bytes();
        CHECK(given > 255U << 20);
        shares.back().hold_at_most(10);
        shares.back().hold_at_most(20); // gives nothing back again
        CHECK(shares.back().bytes() == given);
    }
    shares.clear();
    for (int i = 0; i < 100; ++i) {
        shares.push_back(b.keeper.share_of_spool("sb_1"));
    }
    b.keeper.note_use("sb_1", 1);
    CHECK(b.keeper.share_of_spool("sb_1").bytes() == exec::shim_keeper::smallest_spool);
    b.keeper.note_use("sb_1", 2);
    CHECK(b.keeper.share_of_spool("sb_1").bytes() == 256U << 20);
    shares.clear(); // those of the boot before
    CHECK(b.keeper.share_of_spool("sb_1").bytes() == 256U << 20);
}
