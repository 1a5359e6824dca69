#include "cloud/client_impl.hpp"

#include "cloud/error_body.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace sandboxd::cloud {

namespace asio = boost::asio;

namespace {

using clock = connection::clock;

constexpr std::string_view sandboxes_path = "/v1/sandboxes";
// All of an answer, however slowly it trickles, in units of the answer time-out; a file has this
// speed at least.
constexpr int answers_in_all = 4;
constexpr std::uint64_t slowest_transfer = 16U << 10; // bytes a second
// After a failed send the server may still have said why (413 before the body was read).
constexpr std::chrono::seconds last_words{2};

// What may stand in a header field: visible ASCII.
bool fit_for_header(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// 0, or an errno.
int write_at(int fd, std::string_view bytes, std::uint64_t offset) {
    while (!bytes.empty()) {
        const ssize_t wrote = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return errno;
        bytes.remove_prefix(static_cast<std::size_t>(wrote));
        offset += static_cast<std::uint64_t>(wrote);
    }
    return 0;
}

} // namespace

failure refuse(failure_kind kind, std::string message) {
    return failure{kind, 0, std::move(message), std::nullopt};
}

client::impl::impl(asio::any_io_executor executor, client_options options)
    : options_(std::move(options)), at_(checked(options_.base_url)),
      pool_(std::make_shared<pool>(executor, options_.pool_idle)), executor_(std::move(executor)) {
    if (at_.tls) tls_ = std::make_shared<tls_context>(at_);
}

endpoint client::impl::checked(std::string_view base_url) {
    auto at = parse_endpoint(base_url);
    if (!at) throw std::invalid_argument(at.error());
    return std::move(*at);
}

std::string client::impl::sandboxes_target() const {
    return at_.prefix + std::string(sandboxes_path);
}

std::string client::impl::sandbox_target(std::string_view id, std::string_view rest) const {
    const auto segment = encode_segment(id);
    if (!segment) return {};
    return sandboxes_target() + "/" + *segment + std::string(rest);
}

std::string client::impl::content_target(std::string_view id, std::string_view path) const {
    return sandbox_target(id, "/fs/content?path=" + encode_query_value(path));
}

clock::duration client::impl::in_all(std::uint64_t transfer) const {
    return answers_in_all * options_.answer_timeout +
           std::chrono::seconds(transfer / slowest_transfer);
}

asio::awaitable<result<std::shared_ptr<connection>>>
client::impl::obtain(connection_choice choice) {
    if (choice == connection_choice::pooled_if_possible) {
        if (auto pooled = pool_->take()) co_return pooled;
        co_await pool_->wait_for_return();
        if (auto pooled = pool_->take()) co_return pooled;
    }
    auto addresses = co_await look_up(executor_, at_, options_.connect_timeout);
    if (!addresses) co_return addresses.error();
    std::stable_partition(addresses->begin(), addresses->end(), [this](const auto& address) {
        return good_address_ == address.address();
    });
    auto fresh = connection::make(executor_, tls_);
    const auto begun = clock::now();
    const auto opening = co_await fresh->open(std::move(*addresses), options_.connect_timeout);
    if (!opening) {
        failure why = opening.error();
        why.message = at_.host_header + ": " + why.message;
        co_return why;
    }
    good_address_ = fresh->peer().address();
    pool_->connecting_took(clock::now() - begun);
    co_return fresh;
}

asio::awaitable<result<opened>> client::impl::request(http_request what, connection_choice choice) {
    if (key_.empty()) co_return refuse(failure_kind::unauthorized, "there is no API key yet");
    if (!fit_for_header(key_.reveal())) {
        co_return refuse(failure_kind::unauthorized, "the API key has characters that no key has");
    }
    while (true) {
        auto from = co_await obtain(choice);
        if (!from) co_return from.error();
        connection& on = **from;
        auto reader = std::make_unique<answer_reader>();
        const auto until = clock::now() + in_all(what.body_size());
        on.limit_step(options_.answer_timeout);
        on.limit_all(until);
        ++requests_;
        const sending sent = co_await send(on, at_, options_.user_agent, key_, what);
        if (!sent.unread.empty()) {
            co_return refuse(failure_kind::bad_request,
                             "the file to be sent could not be read: " + sent.unread);
        }
        boost::system::error_code ec = sent.ec;
        const boost::system::error_code send_error = ec;
        if (ec != asio::error::timed_out) {
            const auto patience =
                ec ? clock::duration(last_words) : clock::duration(options_.answer_timeout);
            on.limit_all(std::min(until, clock::now() + patience));
            ec = co_await reader->read_header(on);
        }
        if (!ec) {
            on.limit_all(until);
            co_return opened{std::move(*from), std::move(reader)};
        }
        const bool stale = on.was_pooled() && !reader->any_received();
        if (stale) pool_->clear();
        // Nothing came back on a connection that had rested: the server had closed it. Only a GET
        // is harmless to repeat; and if it took a time-out to find out, the time is up.
        if (stale && what.method == "GET" && ec != asio::error::timed_out) {
            choice = connection_choice::fresh;
            continue;
        }
        co_return failure_of(send_error ? send_error : ec, 0);
    }
}

asio::awaitable<result<answer>> client::impl::finish(opened what) {
    answer_reader& reader = *what.reader;
    const int status = reader.status();
    const bool good = status >= 200 && status <= 299;
    boost::system::error_code ec;
    const auto oversized = [&reader, this] {
        return std::max<std::uint64_t>(reader.body().size(), reader.content_length().value_or(0)) >
               options_.max_answer;
    };
    while (!reader.done() && !ec && !oversized())
        ec = co_await reader.read_some(*what.from);
    if (!ec && !oversized() && reader.reusable())
        pool_->give_back(std::move(what.from), reader.server_idle());
    if (!good) {
        // The status counts even if the body was lost or is endless: a message cut short is not
        // JSON and says nothing.
        co_return failure_from_answer(status, reader.body(), reader.retry_after(), key_);
    }
    if (oversized()) {
        co_return failure{failure_kind::bad_answer, status,
                          "the API's answer is larger than " + std::to_string(options_.max_answer) +
                              " bytes",
                          std::nullopt};
    }
    if (ec) co_return failure_of(ec, status);
    co_return answer{std::move(reader.body()), reader.field("Link"), reader.date()};
}

asio::awaitable<result<std::uint64_t>> client::impl::save(opened what, int fd, std::uint64_t offset,
                                                          std::uint64_t limit,
                                                          std::uint64_t* received) {
    answer_reader& reader = *what.reader;
    what.from->limit_all(clock::now() + in_all(limit));
    const auto too_large = [limit] {
        return refuse(failure_kind::too_large, "the file has more than the " +
                                                   std::to_string(limit) + " bytes expected of it");
    };
    if (reader.content_length().value_or(0) > limit) co_return too_large();
    std::uint64_t total = 0;
    while (true) {
        std::string& body = reader.body();
        if (body.size() > limit - total) co_return too_large();
        if (const int error = write_at(fd, body, offset + total)) {
            co_return refuse(failure_kind::bad_request,
                             "what was received could not be written: " +
                                 boost::system::generic_category().message(error));
        }
        total += body.size();
        if (received != nullptr) *received = total;
        body.clear();
        if (reader.done()) break;
        const boost::system::error_code ec = co_await reader.read_some(*what.from);
        if (ec) co_return failure_of(ec, reader.status());
    }
    if (reader.reusable()) pool_->give_back(std::move(what.from), reader.server_idle());
    co_return total;
}

asio::awaitable<result<answer>> client::impl::call(http_request what, connection_choice choice) {
    auto from = co_await request(std::move(what), choice);
    if (!from) co_return from.error();
    co_return co_await finish(std::move(*from));
}

} // namespace sandboxd::cloud
