// See responder.hpp.
#include "http/responder.hpp"

#include <boost/beast/http/status.hpp>

#include <algorithm>
#include <charconv>
#include <ctime>

namespace emulator::http {

namespace {

std::string http_date(std::int64_t ahead_s) {
    const std::time_t now = std::time(nullptr) + ahead_s;
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    char text[64];
    std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    return text;
}

} // namespace

std::string_view reason(int status) {
    return boost::beast::http::obsolete_reason(
        boost::beast::http::int_to_status(static_cast<unsigned>(status)));
}

void responder::head(int status, std::string_view content_type, std::optional<std::uint64_t> length,
                     const header_list& headers) {
    record_.status = status;
    out_ += "HTTP/1.1 " + std::to_string(status) + " ";
    out_ += reason(status);
    if (date_offset_s_) out_ += "\r\nDate: " + http_date(*date_offset_s_);
    out_ += "\r\nContent-Type: ";
    out_ += content_type;
    if (length)
        out_ += "\r\nContent-Length: " + std::to_string(*length);
    else if (to_.head().version() >= 11) {
        chunked_ = true;
        out_ += "\r\nTransfer-Encoding: chunked";
    } else
        keep_alive_ = false; // HTTP/1.0: the body ends with the connection
    out_ += keep_alive_ ? "" : "\r\nConnection: close";
    for (const auto& [name, value] : headers)
        out_ += "\r\n" + name + ": " + value;
    out_ += "\r\n\r\n";
}

void responder::lose_answer() const {
    if (losing_ && (fault_.act_then_status || fault_.act_then_drop == "started"))
        throw answer_lost();
}

task<void> responder::reply(int status, std::string_view content_type, std::string_view content,
                            const header_list& headers) {
    co_await sleep_ms(to_.executor(), fault_.latency_after_ms);
    lose_answer();
    if (swallows()) throw answer_lost();
    head(status, content_type, content.size(), headers);
    co_await body(content);
    co_await flush();
}

task<void> responder::begin(int status, std::string_view content_type,
                            std::optional<std::uint64_t> length) {
    co_await sleep_ms(to_.executor(), fault_.latency_after_ms);
    lose_answer();
    if (swallows()) co_return;
    head(status, content_type, length, {});
    if (!fault_.inject.empty()) co_await body(fault_.inject);
    co_await flush();
}

void responder::frame(std::string_view part) {
    if (!chunked_) {
        out_ += part;
        return;
    }
    char size[20];
    const auto [end, ec] = std::to_chars(size, size + sizeof size, part.size(), 16);
    out_.append(size, end);
    out_ += "\r\n";
    out_ += part;
    out_ += "\r\n";
}

task<void> responder::body(std::string_view part) {
    if (swallows()) co_return;
    const auto size = static_cast<std::int64_t>(part.size());
    std::int64_t until_cut = fault_.cut_after_bytes ? *fault_.cut_after_bytes - bytes_ : size + 1;
    if (fault_.cut_after_lines) {
        std::int64_t missing = *fault_.cut_after_lines - lines_;
        std::size_t at = 0;
        while (missing > 0 && at < part.size()) {
            const auto newline = part.find('\n', at);
            if (newline == part.npos) {
                at = part.size() + 1;
                break;
            }
            at = newline + 1;
            --missing;
        }
        if (missing <= 0) until_cut = std::min(until_cut, static_cast<std::int64_t>(at));
        lines_ += std::count(part.begin(), part.end(), '\n');
    }
    if (fault_.stall_after_bytes && !stalled_ && bytes_ + size >= *fault_.stall_after_bytes) {
        const auto before = static_cast<std::size_t>(*fault_.stall_after_bytes - bytes_);
        if (before > 0) frame(part.substr(0, before));
        co_await flush();
        co_await stall();
        part.remove_prefix(before);
        until_cut -= static_cast<std::int64_t>(before);
    }
    bytes_ += size;
    if (until_cut <= static_cast<std::int64_t>(part.size())) {
        if (until_cut > 0) frame(part.substr(0, static_cast<std::size_t>(until_cut)));
        co_await flush();
        cut();
    }
    if (!part.empty()) frame(part);
    co_await flush();
}

task<void> responder::end(std::string_view last) {
    if (swallows()) throw answer_lost();
    const bool watched =
        fault_.cut_after_bytes || fault_.cut_after_lines || fault_.stall_after_bytes;
    if (!last.empty()) {
        if (watched || fault_.omit_end)
            co_await body(last);
        else
            frame(last);
    }
    if (fault_.omit_end) {
        by_fault_ = true;
        keep_alive_ = false;
        co_await stall();
        throw connection_lost();
    }
    if (chunked_) out_ += "0\r\n\r\n";
    co_await flush();
}

task<void> responder::flush() {
    const auto piece =
        fault_.piece_bytes > 0 ? static_cast<std::size_t>(fault_.piece_bytes) : out_.size();
    for (std::size_t done = 0; done < out_.size(); done += piece) {
        co_await to_.write(std::string_view(out_).substr(done, piece));
        if (fault_.piece_delay_ms > 0 && done + piece < out_.size())
            co_await sleep_ms(to_.executor(), fault_.piece_delay_ms);
    }
    out_.clear();
}

void responder::cut() {
    by_fault_ = true;
    to_.abort(fault_.reset);
    throw connection_lost();
}

// Silence until the client goes, or stall_ms.
task<void> responder::stall() {
    stalled_ = true;
    by_fault_ = true;
    const auto started = std::chrono::steady_clock::now();
    while (!to_.gone()) {
        if (fault_.stall_ms > 0 && std::chrono::steady_clock::now() - started >=
                                       std::chrono::milliseconds(fault_.stall_ms))
            co_return;
        co_await sleep_ms(to_.executor(), 5);
    }
    throw connection_lost();
}

} // namespace emulator::http
