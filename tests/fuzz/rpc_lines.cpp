// What any process of the user may send to the daemon: lines come out the same however they are
// cut, and each is a request or answered as what it is.
#include "fuzz.hpp"
#include "rpc/line_splitter.hpp"
#include "rpc/message.hpp"

#include <boost/json/parse.hpp>

#include <string>
#include <vector>

namespace fuzz {
namespace {

using namespace sandboxd;

constexpr std::size_t limit = 2000; // bytes of a line

const std::vector<std::string>& lines() {
    static const std::vector<std::string> known = {
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon.ping\",\"params\":{}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"exec.start\",\"params\":{\"argv\":[\"a\",{"
        "\"b64\":\"AA==\"}]}}\r\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"exec.ack\",\"params\":{\"exec_id\":\"e\",\"offset\":"
        "65536}}\n",
        "[{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"hello\"}]\n",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"caf\xc3\xa9 "
        "\\ud83d\\ude00\",\"params\":[]}\n"};
    return known;
}

struct taken {
    std::vector<std::string> lines;
    bool overflowed = false;
    bool operator==(const taken&) const = default;
};

taken split(const std::vector<std::string_view>& from) {
    const std::size_t before = memory_in_use();
    rpc::line_splitter splitter(limit);
    taken all;
    for (const std::string_view piece : from) {
        splitter.feed(piece);
        while (const auto line = splitter.next()) {
            require(line->find('\n') == std::string_view::npos && line->size() < limit,
                    "a line that is none");
            all.lines.emplace_back(*line);
        }
        require(memory_in_use() < before + (1U << 20), "memory grows");
        if (splitter.overflowed()) {
            all.overflowed = true;
            break; // as the daemon does
        }
    }
    return all;
}

void judge(std::string_view line) {
    std::string answer;
    try {
        const rpc::request_message request = rpc::parse_request(line);
        answer = rpc::format_result(request.id, request.params);
    } catch (const rpc::malformed& problem) {
        answer = rpc::format_error(problem.id, problem.error);
    }
    boost::system::error_code error;
    const auto value = boost::json::parse(answer, error);
    require(!error && value.is_object() && answer.find('\n') == answer.size() - 1,
            "an answer that is not one line of JSON");
}

} // namespace

void rpc_lines(chance& by) {
    std::string text;
    for (std::size_t n = 1 + by.below(4); n > 0; --n) {
        text += mutated(by, by.of(lines()), lines());
    }
    const taken in_one = split({text});
    require(split(pieces(by, text)) == in_one || in_one.overflowed,
            "in pieces they are other lines");
    for (const std::string& line : in_one.lines) {
        judge(line);
    }
}

} // namespace fuzz
