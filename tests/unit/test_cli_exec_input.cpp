// A command's stdin on its way in: pieces, their bounds, what is kept and sent again.
#include "cli/exec_input.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::cli;

namespace {

constexpr std::size_t longest = exec_input::longest_chunk;

// What is sent now, as "offset:bytes", long ones by their length, and "!" for the end.
std::string sent(exec_input& input) {
    std::string text;
    while (const auto chunk = input.next()) {
        text += std::to_string(chunk->offset) + ":";
        text += chunk->bytes.size() < 100 ? std::string(chunk->bytes)
                                          : "#" + std::to_string(chunk->bytes.size());
        text += chunk->eof ? "! " : " ";
    }
    return text;
}

} // namespace

TEST_CASE("input: what comes goes, and while it is under way small pieces gather") {
    exec_input input("a");
    CHECK(sent(input) == "0:a ");
    CHECK(sent(input) == "");
    input.take("b");
    input.take("c");
    CHECK(sent(input) == "");
    input.answered(1, true);
    CHECK(sent(input) == "1:bc ");
    input.answered(3, true);
    CHECK(sent(input) == "");
}

TEST_CASE("input: the end goes with the last piece, or alone, once") {
    exec_input input("ab");
    input.end();
    CHECK(sent(input) == "0:ab! ");
    CHECK(sent(input) == "");
    CHECK(input.room() == 0);
    exec_input later("ab");
    CHECK(sent(later) == "0:ab ");
    later.end();
    CHECK(sent(later) == "2:! ");
    later.answered(2, true);
    later.answered(2, false);
    CHECK(sent(later) == "");
}

TEST_CASE("input: long pieces are cut, and at most eight are unanswered") {
    exec_input input;
    CHECK(input.room() == exec_input::capacity);
    input.take(std::string(exec_input::capacity + 5, 'x'));
    CHECK(input.room() == 0);
    std::string all;
    for (std::size_t i = 0; i < exec_input::most_unanswered; ++i)
        all += std::to_string(i * longest) + ":#" + std::to_string(longest) + " ";
    CHECK(sent(input) == all);
    input.end();
    input.answered(longest, true);
    CHECK(sent(input) == std::to_string(8 * longest) + ":xxxxx! ");
}

TEST_CASE("input: what is accepted makes room") {
    exec_input input(std::string(exec_input::capacity, 'x'));
    CHECK(input.room() == 0);
    (void)sent(input);
    input.answered(longest, true);
    CHECK(input.room() == longest);
    input.answered(3 * longest, true);
    CHECK(input.room() == 3 * longest);
}

TEST_CASE("input: after a lost connection all that is not accepted goes again, the end too") {
    exec_input input("abc");
    CHECK(sent(input) == "0:abc ");
    input.take("de");
    input.end();
    CHECK(sent(input) == "3:de! ");
    input.answered(1, true); // and so much is safe
    input.again();
    CHECK(sent(input) == "1:bcde! ");
    input.answered(5, false);
    input.again();
    CHECK(sent(input) == "");
}

TEST_CASE("input: after an answer that says less, it goes on there once all answers are in") {
    exec_input input(std::string(2 * longest, 'x'));
    input.take("yz");
    input.end();
    (void)sent(input);
    input.answered(longest - 1, true);
    CHECK(sent(input) == "");
    CHECK(input.refused()); // it had to be
    CHECK(sent(input) == "");
    CHECK(input.refused());
    CHECK(sent(input) == std::to_string(longest - 1) + ":#" + std::to_string(longest) + " " +
                             std::to_string(2 * longest - 1) + ":xyz! ");
}

TEST_CASE("input: a refusal that nothing explains is told") {
    exec_input input("abc");
    (void)sent(input);
    CHECK(!input.refused());
}

TEST_CASE("input: nothing is read or sent once no more is wanted") {
    exec_input input("abc");
    (void)sent(input);
    input.take("more");
    input.answered(2, false);
    CHECK(input.room() == 0);
    CHECK(sent(input) == "");
    input.again();
    CHECK(sent(input) == "");
}

TEST_CASE("input: an answer out of all bounds does no harm") {
    exec_input input("abc");
    input.answered(7, true); // to nothing
    CHECK(sent(input) == "0:abc ");
    input.answered(1000, true);
    input.take("d");
    CHECK(sent(input) == "3:d ");
}
