// One client's connection: reads requests, runs their handlers, writes answers and output.
//
// Lifetime: its reader and writer coroutines keep it alive; handlers and commands outlive it.
// Memory is bounded whatever the client does: one line in, `max_waiting` requests that wait (what
// comes beyond is refused, so that an exec.ack or a cancel behind it gets through), `max_pending`
// bytes of answers out (beyond that nothing is read from it, and after `write_patience` without
// progress it is dropped), and each command's window. Output is pulled from the commands one piece
// at a time, each in its turn, so that a flood of one delays neither another one nor an answer.
//
// An exec.start is answered before anything is sent about its command, because answers are written
// before output.
#pragma once

#include "base/condition.hpp"
#include "exec/session.hpp"
#include "rpc/line_splitter.hpp"
#include "rpc/message.hpp"
#include "rpc/services.hpp"
#include "sys/peer.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace sandboxd::rpc {

class connection : public exec::subscriber, public std::enable_shared_from_this<connection> {
public:
    using socket = boost::asio::local::stream_protocol::socket;

    connection(socket connected, sys::process_identity peer, services& parts);

    void start();
    // What is pending is written, for at most `patience`; then the connection is closed.
    void close_soon(std::chrono::milliseconds patience);
    bool closed() const noexcept { return closed_; }

    const sys::process_identity& peer() const noexcept { return peer_; }
    // The command's output comes here, in place of an earlier feed of the same command; when the
    // connection goes, the feed is detached.
    void own(const std::shared_ptr<exec::feed>& feed);
    // The one of that command that comes here; null: none does.
    std::shared_ptr<exec::feed> feed_of(const std::string& exec_id) const;

    // That its client has got the end of a command that it asked for: once, after it was told.
    bool take_told(const std::string& exec_id);

    // Whether exec.output has its bytes behind its line, as hello may ask.
    void send_output_raw(bool raw) noexcept { raw_output_ = raw; }

    // A notification that may be missing: left out when the client is slow to read.
    void mention(std::string_view method, json::object params);

    void on_ready(const std::shared_ptr<exec::feed>& which) override;
    void on_progress(const core::sandbox_key& key, const sandbox::progress& news) override;

private:
    static constexpr std::size_t max_pending = 1U << 20;
    static constexpr std::size_t max_waiting = 256;  // requests; more are refused
    static constexpr std::size_t max_told = 1024;    // ends that were not acknowledged yet
    static constexpr std::size_t piece = 64U << 10;  // bytes of output in one message
    static constexpr std::size_t batch = 256U << 10; // bytes in one write
    static constexpr std::chrono::seconds write_patience{60};

    boost::asio::awaitable<void> read();
    boost::asio::awaitable<void> until_gone();
    boost::asio::awaitable<void> write();
    boost::asio::awaitable<void> run(request_message request);
    bool take_line(std::string_view line); // false: the connection cannot go on
    void answer(std::string line);
    void fill(std::string& buffer);
    void note_told(const exec::feed& which, const std::string& exec_id);
    void close();
    bool all_said() const; // nothing it has asked for is still to come

    socket socket_;
    sys::process_identity peer_;
    services& parts_;
    line_splitter splitter_;
    bool greeted_ = false;
    bool raw_output_ = false;
    bool closed_ = false;
    bool draining_ = false; // nothing more is read; closed once what is pending is written
    bool finished_ = false; // the client has sent its last; closed once all it asked for is written
    std::size_t in_flight_ = 0;       // requests without an answer yet
    std::size_t waiting_ = 0;         // of those, the ones that may have to wait for something
    std::size_t pending_ = 0;         // bytes in answers_
    std::deque<std::string> answers_; // complete lines
    std::deque<std::shared_ptr<exec::feed>> ready_;
    std::vector<std::shared_ptr<exec::feed>> owned_; // whose exit has not been told
    std::deque<std::string> told_; // commands that this client asked for, told and not acknowledged
    condition written_;            // there is room for answers again
    condition wanted_;             // there is something to write
};

} // namespace sandboxd::rpc
