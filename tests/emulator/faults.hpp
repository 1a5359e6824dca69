// Faults that a test has ordered, and which requests they are for.
//
// A fault matches on method, route template, sandbox id and what the body contains, lets the first
// `skip` matching requests pass, then takes the next `times`. The oldest matching fault with
// something left wins; a request gets at most one.
#pragma once

#include <boost/json/object.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

// What is done to a request. Members not set do nothing. Bytes and lines are counted in the
// response's body, before chunked framing.
struct fault_action {
    std::int64_t latency_ms = 0;       // before it is handled
    std::int64_t latency_after_ms = 0; // acted on, then waiting before the answer
    bool drop_before = false;          // closed without acting
    bool stall_before = false;         // read, never acted on, never answered
    std::optional<int> status;         // answered so, without acting
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;
    std::string act_then_drop; // "started": acted on (a command has started), then closed; "done":
                               // a command has ended
    std::optional<int>
        act_then_status; // acted on (a command has started), then answered so with body and headers
    std::optional<std::int64_t> cut_after_bytes; // closed after so much of the body
    std::optional<std::int64_t> cut_after_lines;
    bool reset = false; // every closing above by RST instead of FIN ("how": "rst")
    std::optional<std::int64_t>
        stall_after_bytes;      // nothing more is sent, the connection stays open
    std::int64_t stall_ms = 0;  // the stall ends after this; 0 = never
    bool omit_terminal = false; // an exec stream that ends properly, but without its terminal line
    bool omit_end = false;      // the terminal line is sent, the end of the HTTP body is not
    std::string terminal;       // replaces the terminal line
    std::string inject;         // body bytes put before everything else of an exec stream
    std::int64_t piece_bytes = 0; // written to the socket in pieces of this size
    std::int64_t piece_delay_ms = 0;
};

struct fault {
    std::uint64_t number = 0;
    std::string method, route, sandbox_id; // empty = any
    std::string body; // somewhere in the beginning of the request's body; likewise
    std::int64_t skip = 0;
    std::int64_t times = 1; // 0 = without end
    std::int64_t used = 0;
    bool spent = false;
    fault_action action;
};

class fault_list {
public:
    // Throws std::invalid_argument on anything it does not know.
    std::uint64_t add(const boost::json::object& description);
    void clear() { list_.clear(); }
    // One of them asks what the body contains.
    bool wants_body() const;
    // `body`: its beginning, as far as it was looked at.
    std::optional<fault_action> take(const std::string& method, const std::string& route,
                                     const std::string& sandbox_id, std::string_view body);
    boost::json::array to_json() const;

private:
    std::vector<fault> list_;
    std::uint64_t next_ = 1;
};

} // namespace emulator
