// A command's output on its way out: order, duplicates, gaps, acknowledgement, closed streams.
// Positions count both streams together.
#include "cli/exec_output.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::cli;

namespace {

json::object piece(const char* stream, std::int64_t pos, const std::string& data) {
    return {{"exec_id", "x"}, {"stream", stream}, {"offset", 0}, {"pos", pos}, {"data", data}};
}

// All that is queued, as "o:..." and "e:..." by piece.
std::string drain(exec_output& output) {
    std::string text;
    while (!output.empty()) {
        text += output.next_stream() == exec_output::out ? "o:" : "e:";
        text += output.next_bytes();
        text += ' ';
        output.wrote(output.next_bytes().size());
    }
    return text;
}

} // namespace

TEST_CASE("pieces are written in the order of arrival, bytes intact") {
    exec_output output(4096);
    CHECK(output.take(piece("stdout", 0, "a")));
    CHECK(output.take(piece("stderr", 1, "b")));
    CHECK(output.take({{"stream", "stdout"}, {"pos", 2}, {"data_b64", "g/8A"}}));
    CHECK(output.take({{"stream", "stderr"}, {"pos", 5}, {"raw", 2}}, std::string_view("\0\n", 2)));
    CHECK(output.queued() == 7);
    CHECK(drain(output) == std::string("o:a e:b o:\x83\xff\0 e:\0\n ", 19));
    CHECK(output.queued() == 0);
    CHECK(output.missing(7) == 0);
}

TEST_CASE("partial writes go on where they stopped") {
    exec_output output(4096);
    output.take(piece("stdout", 0, "abcdef"));
    output.wrote(2);
    CHECK(output.next_bytes() == "cdef");
    CHECK(output.queued() == 4);
    output.wrote(4);
    CHECK(output.empty());
}

TEST_CASE("what came before is dropped, what never came is counted") {
    exec_output output(4096);
    output.take(piece("stdout", 0, "abc"));
    output.take(piece("stdout", 0, "abc"));
    output.take(piece("stdout", 1, "bcd"));
    CHECK(drain(output) == "o:abc o:d ");
    output.take(piece("stdout", 10, "k"));
    CHECK(drain(output) == "o:k ");
    CHECK(output.missing(11) == 6);
    CHECK(output.missing(15) == 10);
}

TEST_CASE("acknowledged is what was written, over both streams, each quarter of the window") {
    exec_output output(4096);
    output.take(piece("stdout", 0, std::string(1000, 'x')));
    output.take(piece("stderr", 1000, std::string(24, 'y')));
    CHECK(!output.due_ack());
    output.wrote(1000);
    CHECK(!output.due_ack());
    output.wrote(24);
    CHECK(output.due_ack() == 1024);
    CHECK(!output.due_ack());
    output.take(piece("stdout", 1024, std::string(3000, 'x')));
    output.wrote(1500);
    CHECK(output.due_ack() == 2524);
}

TEST_CASE("a closed stream swallows its output and still makes room") {
    exec_output output(4096);
    output.take(piece("stdout", 0, std::string(2000, 'x')));
    output.take(piece("stderr", 2000, "e1"));
    output.take(piece("stdout", 2002, std::string(1998, 'x')));
    output.wrote(100);
    output.close(exec_output::out);
    CHECK(output.queued() == 2);
    CHECK(output.written() == 2000); // not beyond what waits for the other stream
    CHECK(output.due_ack() == 2000);
    output.take(piece("stdout", 4000, "more"));
    CHECK(drain(output) == "e:e1 ");
    CHECK(output.queued() == 0);
}

TEST_CASE("closing one stream leaves a half-written piece of the other") {
    exec_output output(4096);
    output.take(piece("stderr", 0, "abcd"));
    output.take(piece("stdout", 4, "x"));
    output.wrote(2);
    output.close(exec_output::out);
    CHECK(output.next_bytes() == "cd");
    CHECK(output.queued() == 2);
}

TEST_CASE("what is asked for again begins where the last piece ended, whatever is written of it") {
    exec_output output(4096, 100);
    CHECK(output.end() == 100);
    CHECK(output.written() == 100);
    output.take(piece("stdout", 100, "abc"));
    output.take(piece("stderr", 103, "de"));
    output.wrote(2);
    CHECK(output.end() == 105);
    CHECK(output.written() == 102);
    output.take(piece("stdout", 100, "abc")); // from a daemon that begins earlier
    output.take(piece("stderr", 103, "def"));
    CHECK(drain(output) == "o:c e:de e:f ");
    CHECK(output.written() == 106);
    CHECK(output.missing(106) == 0);
}

TEST_CASE("a gap is not acknowledged before what stands in front of it is written") {
    exec_output output(4);
    output.take(piece("stdout", 0, "ab"));
    output.take(piece("stdout", 1000, "c"));
    CHECK(!output.due_ack());
    output.wrote(1);
    CHECK(output.written() == 1);
    output.wrote(1);
    CHECK(output.written() == 1000);
    CHECK(output.due_ack() == 1000);
}

TEST_CASE("a message that makes no sense is told") {
    exec_output output(4096);
    CHECK(!output.take({}));
    CHECK(!output.take(piece("stdlog", 0, "x")));
    CHECK(!output.take(piece("stdout", -1, "x")));
    CHECK(!output.take({{"stream", "stdout"}, {"pos", 0}, {"data_b64", "%"}}));
    CHECK(!output.take({{"stream", "stdout"}, {"pos", "0"}, {"data", "x"}}));
    CHECK(output.empty());
}
