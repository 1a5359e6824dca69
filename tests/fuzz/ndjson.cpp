// The platform's stream of a command: however it is cut into pieces, and by whichever way a line is
// read, the same comes out; it ends exactly once; and text is valid UTF-8.
#include "cloud/ndjson.hpp"
#include "base/utf8.hpp"
#include "fuzz.hpp"

#include <string>
#include <variant>
#include <vector>

namespace fuzz {
namespace {

using namespace sandboxd;

constexpr std::size_t max_line = 4096;

const std::vector<std::string>& streams() {
    static const std::vector<std::string> known = {
        "{\"stdout\":\"a "
        "line\\n\"}\n{\"stderr\":\"other\\t\\\"q\\\"\\u00e9\"}\n{}\n{\"returncode\":3}\n",
        "{\"stdout\": \"caf\xc3\xa9 \\ud83d\\ude00 \\u20ac\\n\"}\n{\"returncode\": 0}\n",
        "{\"stdout\":\"x\",\"stderr\":\"y\"}\r\n\n{\"stdout\":\"\\\\n\\/"
        "\\b\\f\\r\"}\n{\"error\":\"m\"}\n",
        "{\"stdout\":null,\"more\":[1,{\"a\":2}]}\n{\"stdout\":\"\"}\n{\"error\":{\"message\":"
        "\"why\"}}",
        "{\"stderr\":\"\xf0\x9f\x98\x80\"}\n{\"returncode\":-9}\n{\"stdout\":\"after\"}\n"};
    return known;
}

struct outcome {
    std::string out, err, end;
    bool operator==(const outcome&) const = default;
};

std::string told(const cloud::exec_event& event) {
    if (const auto* exited = std::get_if<cloud::exec_exited>(&event)) {
        return "exited " + std::to_string(exited->returncode);
    }
    if (const auto* refused = std::get_if<cloud::exec_refused>(&event)) {
        return "refused " + refused->message;
    }
    return "cut " + std::get<cloud::exec_cut>(event).why.message;
}

// True at the end.
bool take(outcome& all, const cloud::exec_event& event) {
    if (const auto* output = std::get_if<cloud::exec_output>(&event)) {
        require(!output->text.empty() && is_utf8(output->text), "output that is no text");
        (output->is_stderr ? all.err : all.out) += output->text;
        return false;
    }
    if (std::holds_alternative<cloud::exec_heartbeat>(event)) {
        return false;
    }
    all.end = told(event);
    return true;
}

outcome read(const std::vector<std::string_view>& from) {
    const std::size_t before = memory_in_use();
    cloud::ndjson_decoder decoder(max_line, secret(std::string("a key")));
    outcome all;
    for (const std::string_view piece : from) {
        decoder.append(piece);
        while (const auto event = decoder.next()) {
            if (take(all, *event)) {
                require(decoder.ended() && !decoder.next(), "something after the end");
                return all;
            }
        }
        require(memory_in_use() < before + (1U << 20), "memory grows");
    }
    for (int n = 0; n < 4; ++n) {
        if (take(all, decoder.finish(std::nullopt))) {
            require(decoder.ended(), "an end that is none");
            return all;
        }
    }
    require(false, "no end");
    return all;
}

// The same meaning, in a form that only the general way of reading takes.
std::string roundabout(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        std::string_view line = text.substr(at, end - at);
        const bool plain = line.starts_with("{\"stdout\":\"") || line.starts_with("{\"stderr\":\"");
        out += plain ? "{ " : "";
        out += line.substr(plain ? 1 : 0);
        out += end < text.size() ? "\n" : "";
        at = end + 1;
    }
    return out;
}

} // namespace

void ndjson(chance& by) {
    const std::string text = mutated(by, by.of(streams()), streams());
    const outcome whole = read({text});
    require(read(pieces(by, text)) == whole, "in pieces it means something else");
    if (text.size() < max_line) { // the other form is longer, and there is a limit
        require(read({roundabout(text)}) == whole, "read the general way it means something else");
    }
}

} // namespace fuzz
