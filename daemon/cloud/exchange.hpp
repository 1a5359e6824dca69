// One request and its answer on one connection: HTTP/1.1, nothing of the API in it.
//
// An answer_reader reads in bulk and parses what came in one go; it belongs to whoever reads the
// answer and knows whether the connection may be used again. Errors are error codes; `failure_of`
// says what they mean.
#pragma once

#include "base/secret.hpp"
#include "cloud/connection.hpp"
#include "cloud/endpoint.hpp"
#include "cloud/failure.hpp"

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sandboxd::cloud {

// A stretch of a file as the body of a request. Read while it is sent, a piece at a time; the
// descriptor stays the caller's.
struct file_stretch {
    int fd = -1;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    std::uint64_t* sent = nullptr; // if given, tells how many bytes have gone
};

struct http_request {
    // A constructor, since GCC 12 destroys an aggregate made inside a co_await expression twice.
    http_request(std::string_view verb, std::string where, std::string_view type = {},
                 std::string_view content = {})
        : method(verb), target(std::move(where)), content_type(type), body(content) {}
    http_request(std::string_view verb, std::string where, std::string_view type,
                 file_stretch content)
        : method(verb), target(std::move(where)), content_type(type), file(content) {}

    std::uint64_t body_size() const noexcept { return file ? file->size : body.size(); }

    std::string_view method;
    std::string target;               // path and query, encoded
    std::string_view content_type;    // of the body; empty: no body
    std::string_view body;            // outlives the sending
    std::optional<file_stretch> file; // instead of `body`
};

// How sending went: whole if both are empty, else the request is half written.
struct sending {
    boost::system::error_code ec; // of the connection
    std::string unread;           // why the request's own file could not be read to its end
};

// Sends all of it, header and body in one segment where they are small. The text with the key is
// overwritten afterwards.
boost::asio::awaitable<sending> send(connection& to, const endpoint& at,
                                     std::string_view user_agent, const secret& key,
                                     http_request what);

class answer_reader {
public:
    using error_code = boost::system::error_code;

    answer_reader();
    ~answer_reader();
    answer_reader(const answer_reader&) = delete;
    answer_reader& operator=(const answer_reader&) = delete;

    // Up to the end of the header (at most 64 KiB) of the final answer; interim ones (1xx) are
    // skipped.
    boost::asio::awaitable<error_code> read_header(connection& from);
    // Adds to body() what arrives next, up to 64 KiB or more of it; returns without adding anything
    // only at the end or if framing alone arrived. Must not be called once done().
    boost::asio::awaitable<error_code> read_some(connection& from);

    // Valid after read_header().
    int status() const noexcept;
    std::string
    field(std::string_view name) const; // all of that name, joined by ", "; empty if there is none
    std::optional<std::uint64_t> content_length() const;

    std::string& body() noexcept; // what was read and not yet taken away by the caller
    bool done() const noexcept;   // the answer is complete
    bool any_received() const noexcept;
    // Whether another request may follow: complete, kept alive by both sides, and nothing after it.
    bool reusable() const noexcept;
    std::optional<std::chrono::seconds> server_idle() const;           // `Keep-Alive: timeout=`
    std::optional<std::chrono::system_clock::time_point> date() const; // the server's own
    std::optional<std::chrono::seconds>
    retry_after() const; // seen from the answer's own Date, if it has one

private:
    struct state;
    std::unique_ptr<state> state_;
};

// What an error of sending or reading means, once (part of) the request may have been sent.
// `status`: 0 if none came.
failure failure_of(boost::system::error_code ec, int status);

// "timeout" of a Keep-Alive field such as `timeout=5, max=100`.
std::optional<std::chrono::seconds> parse_keep_alive(std::string_view value);

} // namespace sandboxd::cloud
