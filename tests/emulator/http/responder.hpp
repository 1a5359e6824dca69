// The answer to one request, as the faults ordered for it let it through.
//
// Either reply() once, or begin(), body()..., end(). Lives on the stack of the coroutine that
// serves the request. Throws connection_lost when the client has gone or a fault closed the
// connection, answer_lost when a fault wants the effect but not the answer.
#pragma once

#include "config.hpp"
#include "faults.hpp"
#include "http/connection.hpp"
#include "recorder.hpp"

namespace emulator::http {

struct answer_lost : std::exception {};

using header_list = std::vector<std::pair<std::string, std::string>>;

class responder {
public:
    // `date_offset_s`: how far the Date it gives is ahead; nothing: it gives none.
    responder(connection& to, request_record& record, const fault_action& fault, bool keep_alive,
              std::optional<std::int64_t> date_offset_s)
        : to_(to), record_(record), fault_(fault), keep_alive_(keep_alive),
          date_offset_s_(date_offset_s) {}

    task<void> reply(int status, std::string_view content_type, std::string_view body,
                     const header_list& headers = {});
    // Without a length the body is chunked.
    task<void> begin(int status, std::string_view content_type,
                     std::optional<std::uint64_t> length = std::nullopt);
    // Sent when it returns; does not return before the client's window has room for it.
    task<void> body(std::string_view part);
    // `last` is sent together with the end of the body.
    task<void> end(std::string_view last = {});

    bool begun() const { return record_.status != 0; }
    bool keep_alive() const { return keep_alive_; }
    void close_after() { keep_alive_ = false; }
    bool by_fault() const { return by_fault_; }
    const fault_action& fault() const { return fault_; }
    // An ordered "act, then lose the answer" has been served; now the real answer is to be sent.
    void stop_losing() { losing_ = false; }

private:
    void head(int status, std::string_view content_type, std::optional<std::uint64_t> length,
              const header_list& headers);
    void frame(std::string_view part);
    task<void> flush();
    [[noreturn]] void cut();
    task<void> stall();
    bool swallows() const { return losing_ && fault_.act_then_drop == "done"; }
    void lose_answer() const;

    connection& to_;
    request_record& record_;
    const fault_action& fault_;
    bool keep_alive_;
    std::optional<std::int64_t> date_offset_s_;
    bool chunked_ = false;
    bool losing_ = true;
    bool stalled_ = false;
    bool by_fault_ = false;
    std::int64_t bytes_ = 0, lines_ = 0;
    std::string out_;
};

// As in a status line; "Unknown" for what HTTP does not know.
std::string_view reason(int status);

} // namespace emulator::http
