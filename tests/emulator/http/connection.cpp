// See connection.hpp.
#include "http/connection.hpp"

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/error.hpp>

#include <algorithm>

namespace asio = boost::asio;
namespace bhttp = boost::beast::http;

namespace emulator::http {

namespace {

constexpr std::size_t most_unread = 256 * 1024;
constexpr std::uint32_t most_header = 64 * 1024;
constexpr auto linger_time = std::chrono::seconds(3);

} // namespace

connection::connection(const asio::any_io_executor& executor, std::unique_ptr<stream> bytes,
                       std::uint64_t number)
    : executor_(executor), stream_(std::move(bytes)), number_(number), changed_(executor),
      room_(executor) {}

task<void> connection::read_all(std::int64_t delay_ms) {
    auto self = shared_from_this();
    std::vector<char> scratch(64 * 1024);
    try {
        co_await sleep_ms(executor_, delay_ms);
        co_await stream_->open();
        open_ = true;
        changed_.notify();
        for (;;) {
            while (in_.size() - taken_ >= most_unread && !aborted_)
                co_await room_.wait();
            const std::size_t got = co_await stream_->read_some(asio::buffer(scratch));
            in_.append(scratch.data(), got);
            changed_.notify();
        }
    } catch (const boost::system::system_error&) {
    }
    lost();
}

void connection::lost() {
    gone_ = true;
    changed_.notify();
    if (watcher_) watcher_->notify();
}

task<bool> connection::opened() {
    while (!open_ && !gone_)
        co_await changed_.wait();
    co_return open_;
}

void connection::take(std::size_t count) {
    taken_ += count;
    if (taken_ == in_.size()) {
        in_.clear();
        taken_ = 0;
    } else if (taken_ >= most_unread) {
        in_.erase(0, taken_);
        taken_ = 0;
    }
    room_.notify();
}

task<bool> connection::read_head() {
    parser_.emplace();
    parser_->header_limit(most_header);
    parser_->body_limit(boost::none);
    expects_continue_ = false;
    for (;;) {
        boost::system::error_code ec;
        const auto before = input().size();
        if (before > 0) {
            take(parser_->put(asio::buffer(input()), ec));
            if (ec && ec != bhttp::error::need_more) throw not_http();
            if (parser_->is_header_done()) {
                const auto& expect = parser_->get()[bhttp::field::expect];
                expects_continue_ =
                    !parser_->is_done() && boost::beast::iequals(expect, "100-continue");
                co_return true;
            }
        }
        if (gone_) co_return false;
        const auto known = input().size();
        while (input().size() == known && !gone_)
            co_await changed_.wait();
    }
}

std::optional<std::uint64_t> connection::content_length() const {
    const auto length = parser_->content_length();
    return length ? std::optional<std::uint64_t>(*length) : std::nullopt;
}

task<std::size_t> connection::read_body(char* into, std::size_t room) {
    if (expects_continue_) {
        expects_continue_ = false;
        co_await write("HTTP/1.1 100 Continue\r\n\r\n");
    }
    for (;;) {
        if (parser_->is_done()) co_return 0;
        boost::system::error_code ec;
        if (!input().empty()) {
            auto& body = parser_->get().body();
            body.data = into;
            body.size = room;
            take(parser_->put(asio::buffer(input()), ec));
            const std::size_t got = room - body.size;
            if (ec && ec != bhttp::error::need_more && ec != bhttp::error::need_buffer)
                throw not_http();
            if (got > 0) co_return got;
            if (!ec) continue;
        }
        if (parser_->is_done()) co_return 0;
        if (gone_) throw connection_lost();
        const auto known = input().size();
        while (input().size() == known && !gone_)
            co_await changed_.wait();
    }
}

task<std::string_view> connection::peek_body(std::size_t most) {
    if (expects_continue_) co_return std::string_view();
    const std::size_t wanted = std::min<std::size_t>(most, content_length().value_or(0));
    while (input().size() < wanted && !gone_)
        co_await changed_.wait();
    co_return input().substr(0, wanted);
}

task<void> connection::write(std::string_view all) {
    if (aborted_) throw connection_lost();
    bool failed = false;
    try {
        co_await stream_->write(asio::buffer(all));
    } catch (const boost::system::system_error&) {
        failed = true;
    }
    if (failed) {
        lost();
        throw connection_lost();
    }
}

// Closing with unread input would reset the connection and might destroy the answer on its way.
task<void> connection::finish() {
    if (aborted_) co_return;
    auto self = shared_from_this();
    asio::steady_timer limit(executor_, linger_time);
    limit.async_wait([self](boost::system::error_code ec) {
        if (!ec) self->abort(false);
    });
    try {
        co_await stream_->finish();
    } catch (const boost::system::system_error&) {
    }
    while (!gone_) {
        take(input().size());
        co_await changed_.wait();
    }
    abort(false);
}

void connection::abort(bool reset) {
    if (aborted_) return;
    aborted_ = true;
    stream_->abort(reset);
    room_.notify();
}

} // namespace emulator::http
