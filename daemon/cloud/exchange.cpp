#include "cloud/exchange.hpp"

#include "cloud/error_body.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>

#include <openssl/crypto.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>
#include <vector>

namespace sandboxd::cloud {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

constexpr std::size_t one_segment = 64U << 10; // a body up to this is copied behind its header
constexpr std::size_t first_read = 8U << 10;   // reads grow while they come full
constexpr std::size_t largest_read = 64U << 10;
constexpr std::uint32_t longest_header = 64U << 10;
constexpr std::size_t longest_framing = 128U
                                        << 10; // unparsed bytes, such as an endless chunk header
constexpr int most_interim = 8;

struct wiped_text {
    std::string text;
    ~wiped_text() { OPENSSL_cleanse(text.data(), text.size()); }
};

// A Beast body that hands what is parsed to a string owned elsewhere.
struct sink_body {
    using value_type = std::string*;
    class reader {
    public:
        template <bool is_request, class Fields>
        reader(http::header<is_request, Fields>&, value_type& out) : out_(out) {}
        void init(const boost::optional<std::uint64_t>&, beast::error_code& ec) { ec = {}; }
        template <class Buffers>
        std::size_t put(const Buffers& buffers, beast::error_code& ec) {
            ec = {};
            std::size_t size = 0;
            for (auto it = asio::buffer_sequence_begin(buffers);
                 it != asio::buffer_sequence_end(buffers); ++it) {
                const asio::const_buffer buffer = *it;
                out_->append(static_cast<const char*>(buffer.data()), buffer.size());
                size += buffer.size();
            }
            return size;
        }
        void finish(beast::error_code& ec) { ec = {}; }

    private:
        value_type& out_;
    };
};

// Reading is of what the page cache has or reads ahead, in pieces short enough not to hold up the
// daemon's one thread.
asio::awaitable<sending> send_file(connection& to, file_stretch what) {
    std::vector<char> piece(std::min<std::uint64_t>(what.size, one_segment));
    while (what.size > 0) {
        const auto wanted = std::min<std::uint64_t>(what.size, piece.size());
        const ssize_t got = ::pread(what.fd, piece.data(), wanted, static_cast<off_t>(what.offset));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            const std::string why = got < 0 ? boost::system::generic_category().message(errno)
                                            : "it became shorter while it was sent";
            co_return sending{{}, why};
        }
        const std::array<asio::const_buffer, 1> buffers{
            asio::buffer(piece.data(), static_cast<std::size_t>(got))};
        const boost::system::error_code ec = co_await to.write(buffers);
        if (ec) co_return sending{ec, {}};
        if (what.sent != nullptr) *what.sent += static_cast<std::uint64_t>(got);
        what.offset += static_cast<std::uint64_t>(got);
        what.size -= static_cast<std::uint64_t>(got);
    }
    co_return sending{};
}

} // namespace

asio::awaitable<sending> send(connection& to, const endpoint& at, std::string_view user_agent,
                              const secret& key, http_request what) {
    const bool together = what.body.size() <= one_segment;
    wiped_text head;
    std::string& text = head.text;
    // Reserved, because growing would leave copies of the key behind.
    text.reserve(512 + what.target.size() + at.host_header.size() + user_agent.size() +
                 key.reveal().size() + (together ? what.body.size() : 0));
    text.append(what.method)
        .append(" ")
        .append(what.target)
        .append(" HTTP/1.1\r\nHost: ")
        .append(at.host_header);
    text.append("\r\nAuthorization: Bearer ").append(key.reveal());
    if (!user_agent.empty()) text.append("\r\nUser-Agent: ").append(user_agent);
    // `identity`: a proxy that compresses would also hold output back.
    text.append("\r\nAccept: */*\r\nAccept-Encoding: identity");
    if (!what.content_type.empty()) text.append("\r\nContent-Type: ").append(what.content_type);
    if (what.method != "GET")
        text.append("\r\nContent-Length: ").append(std::to_string(what.body_size()));
    text.append("\r\n\r\n");
    if (together) text.append(what.body);
    const std::array<asio::const_buffer, 2> pieces{
        asio::buffer(text),
        together ? asio::const_buffer() : asio::buffer(what.body.data(), what.body.size())};
    const boost::system::error_code ec = co_await to.write(pieces);
    if (ec || !what.file) co_return sending{ec, {}};
    co_return co_await send_file(to, *what.file);
}

struct answer_reader::state {
    std::string body;
    beast::flat_buffer raw; // read and not yet parsed: the rest of a header or of a chunk's framing
    std::optional<http::response_parser<sink_body>> parser;
    std::size_t next_read = first_read;
    bool any_received = false;
    error_code
        body_error; // found while reading the header; told after what came before it was taken

    void new_parser() {
        parser.emplace();
        parser->get().body() = &body;
        parser->header_limit(longest_header);
        parser->body_limit(boost::none); // bounded by who reads it
    }

    // Parses what is there. Too little for a step is not an error.
    error_code parse() {
        error_code ec;
        if (raw.size() == 0 || parser->is_done()) return ec;
        raw.consume(parser->put(raw.data(), ec));
        if (ec == http::error::need_more) ec = {};
        if (!ec && raw.size() > longest_framing) ec = http::error::buffer_overflow;
        return ec;
    }

    asio::awaitable<error_code> fill(connection& from) {
        const auto space = raw.prepare(next_read);
        const auto [ec, bytes] = co_await from.read_some(space);
        if (!ec) {
            any_received = true;
            raw.commit(bytes);
            if (bytes == space.size()) next_read = std::min(2 * next_read, largest_read);
        }
        co_return ec;
    }

    // The peer closed: the proper end of an answer without a length, an accident in any other.
    error_code at_end() {
        error_code ec;
        if (!parser->got_some()) return http::error::end_of_stream;
        parser->put_eof(ec);
        return ec;
    }
};

answer_reader::answer_reader() : state_(std::make_unique<state>()) {
    state_->new_parser();
}
answer_reader::~answer_reader() = default;

asio::awaitable<answer_reader::error_code> answer_reader::read_header(connection& from) {
    state& s = *state_;
    for (int interim = 0;;) {
        // Not eager: the body is not touched before the caller knows what it is.
        s.parser->eager(false);
        if (const error_code ec = s.parse()) co_return ec;
        if (s.parser->is_header_done()) {
            const int code = status();
            if (code / 100 != 1) break;
            if (code == 101 || ++interim > most_interim) co_return http::error::bad_status;
            s.new_parser();
            continue;
        }
        const error_code ec = co_await s.fill(from);
        if (ec == asio::error::eof) co_return s.at_end();
        if (ec) co_return ec;
    }
    s.parser->eager(true);
    s.body_error = s.parse();
    co_return error_code();
}

asio::awaitable<answer_reader::error_code> answer_reader::read_some(connection& from) {
    state& s = *state_;
    if (s.body_error) co_return s.body_error;
    const error_code ec = co_await s.fill(from);
    if (ec == asio::error::eof) co_return s.at_end();
    if (ec) co_return ec;
    co_return s.parse();
}

int answer_reader::status() const noexcept {
    return static_cast<int>(state_->parser->get().result_int());
}

std::string answer_reader::field(std::string_view name) const {
    std::string out;
    const auto [first, last] = state_->parser->get().equal_range({name.data(), name.size()});
    for (auto it = first; it != last; ++it) {
        if (!out.empty()) out += ", ";
        out.append(it->value().data(), it->value().size());
    }
    return out;
}

std::optional<std::uint64_t> answer_reader::content_length() const {
    const auto length = state_->parser->content_length();
    return length ? std::optional<std::uint64_t>(*length) : std::nullopt;
}

std::string& answer_reader::body() noexcept {
    return state_->body;
}
bool answer_reader::done() const noexcept {
    return state_->parser->is_done();
}
bool answer_reader::any_received() const noexcept {
    return state_->any_received;
}

bool answer_reader::reusable() const noexcept {
    return state_->parser->is_done() && state_->parser->keep_alive() && state_->raw.size() == 0;
}

std::optional<std::chrono::seconds> answer_reader::server_idle() const {
    return parse_keep_alive(field("Keep-Alive"));
}

std::optional<std::chrono::system_clock::time_point> answer_reader::date() const {
    return parse_http_date(field("Date"));
}

std::optional<std::chrono::seconds> answer_reader::retry_after() const {
    const auto said = date();
    return parse_retry_after(field("Retry-After"), said.value_or(std::chrono::system_clock::now()));
}

std::optional<std::chrono::seconds> parse_keep_alive(std::string_view value) {
    while (!value.empty()) {
        std::string_view item = value.substr(0, value.find(','));
        value.remove_prefix(std::min(item.size() + 1, value.size()));
        item.remove_prefix(std::min(item.find_first_not_of(" \t"), item.size()));
        static constexpr std::string_view name = "timeout=";
        if (!beast::iequals(
                {item.substr(0, name.size()).data(), std::min(item.size(), name.size())},
                {name.data(), name.size()})) {
            continue;
        }
        item.remove_prefix(name.size());
        unsigned count = 0;
        const auto [end, ec] = std::from_chars(item.data(), item.data() + item.size(), count);
        if (ec != std::errc{} || end == item.data()) return std::nullopt;
        return std::chrono::seconds(std::min(count, 86'400U));
    }
    return std::nullopt;
}

failure failure_of(boost::system::error_code ec, int status) {
    failure out{failure_kind::interrupted, status, {}, std::nullopt};
    if (ec == asio::error::timed_out) {
        out.message = status == 0 ? "the API did not answer in time"
                                  : "the rest of the API's answer did not come in time";
    } else if (ec == http::error::end_of_stream || ec == http::error::partial_message ||
               ec == asio::error::eof || ec == asio::ssl::error::stream_truncated) {
        out.message = "the connection was closed before the API's answer was complete";
    } else if (ec.category() == http::make_error_code(http::error::end_of_stream).category()) {
        out.kind = failure_kind::bad_answer;
        out.message = "the API's answer is not proper HTTP: " + ec.message();
    } else {
        out.message = "the connection to the API was lost: " + ec.message();
    }
    return out;
}

} // namespace sandboxd::cloud
