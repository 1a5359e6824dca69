// What a listing shows beyond the sandboxes in use: late ones, orphans, and everybody else's.
#include "core/listing_review.hpp"

#include <doctest/doctest.h>

using namespace sandboxd;
using namespace sandboxd::core;

namespace {

sandbox_record record_of(std::string task, std::string creation, std::string id = {}) {
    sandbox_record record;
    record.key = {"p", std::move(task)};
    record.creation_id = std::move(creation);
    record.attempt = 1;
    record.sandbox_id = std::move(id);
    return record;
}

cloud::sandbox_info made(const std::string& id, sandbox_record record, int attempt = 1,
                         std::string_view instance = "inst") {
    record.attempt = attempt;
    cloud::sandbox_info info;
    info.id = id;
    info.state = cloud::sandbox_state::running;
    info.tags = tags_for(record, instance);
    return info;
}

std::vector<std::string> ids(const std::vector<cloud::sandbox_info>& all) {
    std::vector<std::string> out;
    for (const auto& each : all) {
        out.push_back(each.id);
    }
    return out;
}

using strings = std::vector<std::string>;

} // namespace

TEST_CASE("listing: what is in use is neither late nor lost") {
    const sandbox_record used = record_of("a", "c1", "sb_1");
    const listing_review review = review_listing({made("sb_1", used)}, {used}, "inst");
    CHECK(review.late.empty());
    CHECK(review.orphans.empty());
    CHECK(review.others_active == 0);
}

TEST_CASE("listing: what is not provably ours is counted and never named") {
    const sandbox_record used = record_of("a", "c1", "sb_1");
    cloud::sandbox_info bare;
    bare.id = "sb_x";
    bare.state = cloud::sandbox_state::running;
    cloud::sandbox_info claims = made("sb_y", used, 2);
    claims.tags.erase(std::string(tag::owner));
    cloud::sandbox_info resting = bare;
    resting.state = cloud::sandbox_state::stopped;
    const listing_review review =
        review_listing({bare, claims, resting, made("sb_z", used, 2, "other")}, {used}, "inst");
    CHECK(review.late.empty());
    CHECK(review.orphans.empty());
    CHECK(review.others_active == 3);
}

TEST_CASE("listing: of one creation only the sandbox in use stays") {
    const sandbox_record used = record_of("a", "c1", "sb_2");
    const listing_review review =
        review_listing({made("sb_1", used, 1), made("sb_2", used, 2)}, {used}, "inst");
    CHECK(ids(review.late) == strings{"sb_1"});
    CHECK(review.orphans.empty());
}

TEST_CASE("listing: while the outcome is open, what turns up is neither") {
    sandbox_record pending = record_of("a", "c1");
    pending.create_pending = true;
    pending.doubts = {{"c1", 5}};
    const listing_review review =
        review_listing({made("sb_1", pending, 1), made("sb_2", pending, 2)}, {pending}, "inst");
    CHECK(review.late.empty());
    CHECK(review.orphans.empty());
}

TEST_CASE("listing: a doubt outlives the use of its creation, whoever's record holds it") {
    sandbox_record moved_on = record_of("a", "c2", "sb_2");
    moved_on.doubts = {{"c1", 5}};
    const sandbox_record before = record_of("a", "c1");
    const sandbox_record other = record_of("b", "c9", "sb_9");
    const listing_review review =
        review_listing({made("sb_1", before), made("sb_2", moved_on), made("sb_9", other)},
                       {other, moved_on}, "inst");
    CHECK(ids(review.late) == strings{"sb_1"});
    CHECK(review.orphans.empty());
}

TEST_CASE(
    "listing: ours and unknown is an orphan, also without a creation tag; deleted is nothing") {
    cloud::sandbox_info untold = made("sb_2", record_of("b", "c2"));
    untold.tags.erase(std::string(tag::creation));
    cloud::sandbox_info deleted = made("sb_3", record_of("c", "c3"));
    deleted.state = cloud::sandbox_state::deleted;
    sandbox_record empty = record_of("d", "");
    const listing_review review =
        review_listing({made("sb_1", record_of("a", "c1")), untold, deleted}, {empty}, "inst");
    CHECK(ids(review.orphans) == strings{"sb_1", "sb_2"});
    CHECK(review.late.empty());
}

TEST_CASE("listing: a creation id is compared as a whole") {
    sandbox_record used = record_of("a", "c1", "sb_1");
    used.doubts = {{"c1", 5}};
    CHECK(ids(review_listing({made("sb_2", record_of("a", "c11"))}, {used}, "inst").orphans) ==
          strings{"sb_2"});
}

TEST_CASE("doubts: dated once, kept for a day, and an open intent keeps its own") {
    sandbox_record record = record_of("a", "c2");
    record.create_pending = true;
    record.state = life_state::creating;
    record.doubts = {{"c1", 100}, {"c2", 0}};
    age_doubts(record, 1'000);
    CHECK(record.doubts[1].since == 1'000);
    age_doubts(record, 100 + 86'400);
    REQUIRE(record.doubts.size() == 1);
    age_doubts(record, 1'000 + 10 * 86'400);
    CHECK(record.doubts.size() == 1);
    CHECK(record.create_pending);
    record.create_pending = false; // listings have ended it
    age_doubts(record, 1'000 + 10 * 86'400);
    CHECK(record.doubts.empty());
}

TEST_CASE("doubts: one dated by a clock that was ahead begins anew") {
    sandbox_record record = record_of("a", "c2");
    record.doubts = {{"c1", 500'000}};
    age_doubts(record, 1'000);
    CHECK(record.doubts[0].since == 1'000);
}

TEST_CASE("listing: the twin of one that was adopted is an orphan still") {
    sandbox_record adopted = record_of("a", "", "sb_2");
    const sandbox_record before = record_of("a", "c1");
    const listing_review review =
        review_listing({made("sb_1", before, 1), made("sb_2", before, 2)}, {adopted}, "inst");
    CHECK(ids(review.orphans) == strings{"sb_1"});
    CHECK(review.late.empty());
}
