// The output of one command on its way to its client: order, offsets, the two bounds, and what is
// dropped.
#include "core/output_queue.hpp"

#include "base/utf8.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

using namespace sandboxd::core;

namespace {

constexpr auto out = output_stream::out;
constexpr auto err = output_stream::err;

// "out@0:text", or "-" for nothing.
std::string text_of(const std::optional<output_chunk>& chunk) {
    if (!chunk) return "-";
    return (chunk->stream == out ? "out@" : "err@") + std::to_string(chunk->offset) + ":" +
           chunk->bytes;
}

} // namespace

TEST_CASE("output queue: streams keep their order, offsets count within each") {
    output_queue queue(100);
    CHECK(queue.empty());
    CHECK_FALSE(queue.can_take());
    CHECK(text_of(queue.take(10)) == "-");
    queue.push(out, "one");
    queue.push(err, "two!");
    queue.push(out, "three");
    CHECK(queue.end() == 12);
    CHECK(text_of(queue.take(100)) == "out@0:one");
    CHECK(text_of(queue.take(100)) == "err@0:two!");
    CHECK(text_of(queue.take(100)) == "out@3:three");
    CHECK(text_of(queue.take(100)) == "-");
    queue.push(err, "x");
    CHECK(text_of(queue.take(100)) == "err@4:x");
    CHECK(queue.dropped() == 0);
}

TEST_CASE("output queue: nothing is not a piece") {
    output_queue queue(100);
    queue.push(out, "");
    CHECK(queue.empty());
    CHECK(queue.end() == 0);
}

TEST_CASE("output queue: small pieces of one stream are joined, up to a size") {
    output_queue queue(1 << 20);
    for (int i = 0; i < 1000; ++i)
        queue.push(out, "line\n");
    const auto joined = queue.take(1 << 20);
    REQUIRE(joined);
    CHECK(joined->bytes.size() == 5000);
    CHECK(queue.empty());
    queue.push(out, std::string(10'000, 'a'));
    queue.push(out, std::string(10'000, 'b'));
    CHECK(queue.take(1 << 20)->bytes.size() == 10'000);
    CHECK(text_of(queue.take(1)) == "out@15000:b");
}

TEST_CASE("output queue: a piece is taken in parts") {
    output_queue queue(100);
    queue.push(out, "abcdef");
    CHECK(text_of(queue.take(2)) == "out@0:ab");
    queue.push(out, "gh"); // joins what is half taken
    CHECK(text_of(queue.take(3)) == "out@2:cde");
    CHECK(text_of(queue.take(100)) == "out@5:fgh");
    CHECK(queue.empty());
}

TEST_CASE("output queue: the reader stops at a full queue") {
    output_queue queue(10);
    queue.push(out, "123456789");
    CHECK_FALSE(queue.full());
    queue.push(out, "0");
    CHECK(queue.full());
    queue.push(err, "one that was under way");
    CHECK(queue.full());
    CHECK(queue.take(100)->bytes.size() == 10);
    CHECK(queue.full()); // 22 bytes are still queued
    CHECK(queue.acknowledge(10));
    CHECK(queue.take(100)->bytes.size() == 10);
    CHECK(queue.acknowledge(20));
    CHECK(queue.take(10)->bytes.size() == 10);
    CHECK_FALSE(queue.full());
}

TEST_CASE("output queue: never more than a window without an acknowledgement") {
    output_queue queue(10);
    queue.push(out, std::string(25, 'x'));
    CHECK(queue.take(6)->bytes.size() == 6);
    CHECK(queue.take(6)->bytes.size() == 4);
    CHECK_FALSE(queue.can_take());
    CHECK(text_of(queue.take(6)) == "-");
    CHECK_FALSE(queue.empty());
    CHECK(queue.acknowledge(3));
    CHECK(queue.can_take());
    CHECK(text_of(queue.take(6)) == "out@10:xxx");
    CHECK(queue.acknowledge(13));
    CHECK(queue.take(100)->bytes.size() == 10);
}

TEST_CASE("output queue: acknowledgements may cross, but not run ahead") {
    output_queue queue(10);
    queue.push(out, "12345");
    queue.push(err, "67890");
    REQUIRE(queue.take(100));
    REQUIRE(queue.take(100));
    CHECK_FALSE(queue.acknowledge(11));
    CHECK(queue.acknowledge(10)); // over both streams
    CHECK(queue.acknowledge(4));  // an older one
    queue.push(out, "abcdefghij");
    CHECK(queue.take(100)->bytes.size() == 10); // the newer one stands
    CHECK(queue.acknowledge(0));
    CHECK_FALSE(queue.can_take());
}

TEST_CASE("output queue: characters are cut only when there is no room for a whole one") {
    const std::string smile = "\xF0\x9F\x98\x80";
    SUBCASE("by the size of a piece") {
        output_queue queue(100);
        queue.push(out, "a" + smile + "b");
        CHECK(text_of(queue.take(3)) == "out@0:a");
        CHECK(text_of(queue.take(4)) == "out@1:" + smile);
        CHECK(text_of(queue.take(4)) == "out@5:b");
    }
    SUBCASE("by the window") {
        output_queue queue(3);
        queue.push(out, smile);
        CHECK(text_of(queue.take(100)) == "out@0:" + smile.substr(0, 3));
        CHECK(queue.acknowledge(3));
        CHECK(text_of(queue.take(100)) == "out@3:" + smile.substr(3));
    }
    SUBCASE("what is no text is cut anywhere") {
        output_queue queue(100);
        queue.push(out, std::string("\xff\xfe\xfd\xfc\xfb\xfa", 6));
        CHECK(queue.take(5)->bytes.size() == 5);
        CHECK(queue.take(5)->bytes.size() == 1);
    }
}

TEST_CASE("output queue: without a client the command goes on, and nothing is kept twice") {
    output_queue queue(10);
    queue.push(out, "12345");
    REQUIRE(queue.take(3));
    queue.push(out, "67890abc");
    CHECK(queue.full());
    queue.leave();
    CHECK_FALSE(queue.full());
    CHECK(queue.empty());
    queue.push(err, std::string(1'000, 'x'));
    CHECK_FALSE(queue.full());
    CHECK(queue.empty());
    CHECK(queue.end() == 1'013);
    CHECK(queue.dropped() == 0); // the sandbox has it
    CHECK(queue.acknowledge(3)); // one that was on its way
}

TEST_CASE("output queue: it goes on where it is told to") {
    output_queue queue(10, 100);
    CHECK(queue.end() == 100);
    queue.push(err, 100, 40, "abc");
    const auto chunk = queue.take(100);
    REQUIRE(chunk);
    CHECK(chunk->pos == 100);
    CHECK(chunk->offset == 40);
    CHECK(queue.end() == 103);
    CHECK_FALSE(queue.acknowledge(104));
    CHECK(queue.acknowledge(103));
    queue.push(err, 90, 30, "an old piece"); // positions never go back
    CHECK(queue.empty());
    CHECK(queue.end() == 103);
    queue.push(err, 101, 41, "bcdef"); // partly old
    CHECK(text_of(queue.take(100)) == "err@43:def");
    CHECK(queue.dropped() == 0);
}

TEST_CASE("output queue: a hole is dropped, and takes up no window") {
    output_queue queue(10);
    queue.push(out, 0, 0, "12345");
    queue.push(out, 1'005, 905, "67890"); // 100 of them were of the other stream
    CHECK(queue.dropped() == 1'000);
    CHECK(text_of(queue.take(100)) == "out@0:12345");
    const auto chunk = queue.take(100);
    REQUIRE(chunk);
    CHECK(chunk->pos == 1'005);
    CHECK(chunk->offset == 905);
    queue.push(err, 1'010, 100, "x");
    CHECK_FALSE(queue.can_take()); // ten bytes are out
    CHECK(queue.acknowledge(1'006));
    CHECK(text_of(queue.take(100)) == "err@100:x");
    queue.finish(1'011);
    CHECK(queue.dropped() == 1'000);
    queue.finish(1'020); // the last bytes never came
    CHECK(queue.dropped() == 1'009);
    CHECK(queue.end() == 1'020);
    CHECK(queue.empty());
}

TEST_CASE("output queue: the only copy is kept until it is acknowledged") {
    output_queue queue(8);
    queue.retain();
    queue.push(out, "1234");
    queue.push(err, "56");
    CHECK(text_of(queue.take(100)) == "out@0:1234");
    CHECK(text_of(queue.take(100)) == "err@0:56");
    CHECK(queue.empty());
    SUBCASE("the next client gets it again") {
        queue.leave();
        queue.rewind(2, 8);
        CHECK(text_of(queue.take(100)) == "out@2:34");
        CHECK(text_of(queue.take(1)) == "err@0:5");
        CHECK(queue.acknowledge(5));
        queue.leave();
        queue.rewind(5, 8);
        CHECK(text_of(queue.take(100)) == "err@1:6");
        CHECK(queue.dropped() == 0);
    }
    SUBCASE("what was acknowledged is gone") {
        CHECK(queue.acknowledge(4));
        queue.leave();
        queue.rewind(0, 8);
        CHECK(queue.dropped() == 4);
        CHECK(text_of(queue.take(100)) == "err@0:56");
    }
    SUBCASE("without a client the newest stays") {
        queue.leave();
        queue.push(out, "7890");
        queue.push(err, "abcd");
        CHECK_FALSE(queue.full());
        queue.rewind(0, 100);
        CHECK(queue.dropped() == 6);
        CHECK(text_of(queue.take(100)) == "out@4:7890");
        CHECK(text_of(queue.take(100)) == "err@2:abcd");
        CHECK(queue.end() == 14);
    }
    SUBCASE("beyond the end is the end") {
        queue.leave();
        queue.rewind(50, 8);
        CHECK(queue.empty());
        CHECK(queue.dropped() == 0);
        queue.push(out, "z");
        CHECK(text_of(queue.take(100)) == "out@4:z");
    }
}

TEST_CASE("output queue: a random walk loses nothing and keeps its bounds") {
    std::mt19937 random(7);
    for (int walk = 0; walk < 300; ++walk) {
        CAPTURE(walk);
        const std::size_t window = 1 + random() % 64;
        output_queue queue(window);
        if (walk % 2 == 1) {
            queue.retain();
        }
        std::string sent[2];
        std::string received[2];
        std::uint64_t taken = 0;
        std::uint64_t acknowledged = 0;
        for (int step = 0; step < 300; ++step) {
            switch (random() % 3) {
            case 0:
                if (!queue.full()) {
                    const bool is_err = random() % 3 == 0;
                    std::string bytes;
                    for (unsigned n = random() % 12; n > 0; --n) {
                        bytes += random() % 4 == 0 ? "\xE2\x82\xAC" : "z";
                    }
                    sent[is_err] += bytes;
                    queue.push(is_err ? err : out, bytes);
                }
                break;
            case 1:
                if (const auto chunk = queue.take(1 + random() % 16)) {
                    REQUIRE_FALSE(chunk->bytes.empty());
                    std::string& got = received[chunk->stream == err];
                    REQUIRE(chunk->offset == got.size());
                    got += chunk->bytes;
                    taken += chunk->bytes.size();
                    REQUIRE(taken - acknowledged <= window);
                }
                break;
            default:
                acknowledged += random() % (taken - acknowledged + 1);
                REQUIRE(queue.acknowledge(acknowledged));
            }
        }
        while (!queue.empty()) {
            REQUIRE(queue.acknowledge(taken));
            const auto chunk = queue.take(100);
            REQUIRE(chunk);
            received[chunk->stream == err] += chunk->bytes;
            taken += chunk->bytes.size();
        }
        CHECK(received[0] == sent[0]);
        CHECK(received[1] == sent[1]);
        CHECK(queue.end() == sent[0].size() + sent[1].size());
    }
}
