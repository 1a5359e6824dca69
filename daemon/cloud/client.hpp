// The deep_sands HTTP API (see the table in each function's comment): one client for one base URL
// and one key.
//
// Owns a pool of keep-alive connections on the daemon's one io_context; lives as long as the
// daemon. Every function is safe to call from many coroutines at once (on that one thread), applies
// a time-out to every step, and may be cancelled through Asio's cancellation slot; cancelled, it
// throws system_error(operation_aborted) as Asio does. Everything else comes back as a `failure`
// value. Nothing is ever sent twice by this class, except that a GET whose pooled connection turns
// out to be dead before one byte of the answer came is sent once more on a fresh connection.
#pragma once

#include "base/secret.hpp"
#include "cloud/exec_event.hpp"
#include "cloud/failure.hpp"
#include "cloud/model.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sandboxd::cloud {

inline constexpr std::uint64_t largest_content = 100U << 20; // of one fs/content call (P)

// The answer of one exec, being read. Reading is on demand only, so a caller that does not call
// next() slows the command down as a full pipe would. Destroying it before the terminal line drops
// the connection.
class exec_stream {
public:
    virtual ~exec_stream() = default;
    // The next event. After exec_exited, exec_refused or exec_cut there is none and next() must not
    // be called. Waits without limit: the caller owns the deadline. Cancelled, it throws, and may
    // be called again: nothing is lost.
    virtual boost::asio::awaitable<exec_event> next() = 0;
    // The same, if it is here already.
    virtual std::optional<exec_event> ready() = 0;
};

struct client_options {
    std::string base_url;   // https://host[:port][/prefix]; http only for loopback
    std::string user_agent; // e.g. "deepinfra-sandboxd/0.1.0"
    std::chrono::milliseconds connect_timeout{
        10'000}; // look-up, TCP connect and TLS handshake, each
    std::chrono::milliseconds answer_timeout{
        30'000}; // from the last byte sent to the answer's header, and between
                 // bytes of an answer's body (exec streams: header only);
                 // a whole answer may take four times that, and an upload as
                 // long as 16 KiB/s takes
    std::chrono::milliseconds pool_idle{
        55'000};                        // a connection idle for longer is closed, not reused
    std::size_t max_answer = 16U << 20; // bytes of a JSON answer
    std::size_t max_line = 4U << 20;    // bytes of one NDJSON line
    // Told the Date of each good JSON answer, or that it has none; not of errors, pages, files and
    // execs. May be empty.
    std::function<void(std::optional<std::chrono::system_clock::time_point>)> on_date;
};

class client {
public:
    // Throws std::invalid_argument, with a text for people, if the base URL must not be used.
    client(boost::asio::any_io_executor executor, client_options options);
    ~client();
    client(const client&) = delete;
    client& operator=(const client&) = delete;

    // Replaces the key for all later requests. Without one every call fails as `unauthorized`,
    // nothing sent.
    void set_key(secret key);

    boost::asio::awaitable<result<std::vector<sandbox_info>>>
    list(); // GET /v1/sandboxes (all pages)
    boost::asio::awaitable<result<sandbox_info>> get(std::string id); // GET /v1/sandboxes/{id}
    boost::asio::awaitable<result<std::string>>
    create(create_request request); // POST /v1/sandboxes -> sandbox id; always on
                                    // a fresh connection
    boost::asio::awaitable<result<void>> start(std::string id);  // POST /v1/sandboxes/{id}/start
    boost::asio::awaitable<result<void>> stop(std::string id);   // POST /v1/sandboxes/{id}/stop
    boost::asio::awaitable<result<void>> remove(std::string id); // DELETE /v1/sandboxes/{id}
    boost::asio::awaitable<result<std::vector<plan_info>>> catalog(); // GET /v1/sandboxes/catalog
    // PUT /v1/sandboxes/{id}/fs/content?path=P; at most largest_content.
    boost::asio::awaitable<result<void>> put_content(std::string id, std::string path,
                                                     std::string bytes);
    // The same from a file: `size` bytes of `fd` from `offset`, never more than a piece of them in
    // memory. The descriptor stays open until the call has ended. A file that cannot be read or has
    // become shorter fails as bad_request; the platform may have kept the beginning then. `sent`,
    // if given, outlives the call and tells from 0 on how many bytes have gone.
    boost::asio::awaitable<result<void>> put_file(std::string id, std::string path, int fd,
                                                  std::uint64_t offset, std::uint64_t size,
                                                  std::uint64_t* sent = nullptr);
    // GET /v1/sandboxes/{id}/fs/content?path=P into `fd`, from `offset` on; returns how many bytes
    // there were. More than `limit` fails as too_large, a disk that takes no more as bad_request;
    // what was written until then stays. `received` as `sent` above.
    boost::asio::awaitable<result<std::uint64_t>> get_content(std::string id, std::string path,
                                                              int fd, std::uint64_t offset,
                                                              std::uint64_t limit,
                                                              std::uint64_t* received = nullptr);
    // POST /v1/sandboxes/{id}/exec. `timeout` is the server's own limit (0: its default of 60 s);
    // argv as it is, no shell.
    boost::asio::awaitable<result<std::unique_ptr<exec_stream>>>
    exec(std::string id, std::vector<std::string> argv, std::chrono::seconds timeout);

    std::uint64_t requests() const noexcept; // sent since the start
    std::size_t idle_connections() const noexcept;

private:
    class impl;
    std::shared_ptr<impl> impl_;
};

} // namespace sandboxd::cloud
