// One client connection: requests in, bytes out, and the news that the client has gone.
//
// A reader runs for as long as the connection lives and collects what comes (bounded), so that the
// end of the client is noticed at once even while a command runs, and pipelined requests are kept
// for later. Everything else pulls from that buffer. Shared by the reader and the coroutine that
// serves it.
#pragma once

#include "http/stream.hpp"

#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace emulator::http {

// The client has gone, or a fault has closed the connection.
struct connection_lost : std::exception {};
// What came is not HTTP.
struct not_http : std::exception {};

class connection : public std::enable_shared_from_this<connection> {
public:
    connection(const boost::asio::any_io_executor& executor, std::unique_ptr<stream> bytes,
               std::uint64_t number);

    std::uint64_t number() const { return number_; }
    const boost::asio::any_io_executor& executor() const { return executor_; }
    // Waits `delay_ms`, shakes hands, then collects until the end. Spawned once.
    task<void> read_all(std::int64_t delay_ms);
    task<bool> opened(); // false: the handshake failed

    // The next request's head; false: the client has gone instead. Throws not_http.
    task<bool> read_head();
    using message = boost::beast::http::request<boost::beast::http::buffer_body>;
    const message& head() const { return parser_->get(); }
    std::optional<std::uint64_t> content_length() const;
    bool body_done() const { return parser_->is_done(); }
    // Some of the body; 0 = no more. Asks for it first where the client waits for "100 Continue".
    task<std::size_t> read_body(char* into, std::size_t room);
    // Its beginning, at most `most` bytes of it, which read_body() then gives all the same. Empty
    // where its length is not told or the client waits to be asked for it.
    task<std::string_view> peek_body(std::size_t most);
    bool client_waits_for_continue() const { return expects_continue_; }

    task<void> write(std::string_view all); // throws connection_lost
    task<void> finish(); // orderly end, then waits some seconds for the client to close
    void abort(bool reset);

    bool busy = false; // a request is being served

    bool gone() const { return gone_; }
    bool aborted() const { return aborted_; }
    bool has_input() const { return in_.size() > taken_; }
    // `who` is notified when the client goes. nullptr ends it.
    void watch(event* who) { watcher_ = who; }

private:
    std::string_view input() const { return std::string_view(in_).substr(taken_); }
    void take(std::size_t count);
    void lost();

    boost::asio::any_io_executor executor_;
    std::unique_ptr<stream> stream_;
    std::uint64_t number_;
    std::string in_;
    std::size_t taken_ = 0;
    event changed_, room_;
    event* watcher_ = nullptr;
    bool open_ = false, gone_ = false, aborted_ = false, expects_continue_ = false;
    std::optional<boost::beast::http::request_parser<boost::beast::http::buffer_body>> parser_;
};

} // namespace emulator::http
