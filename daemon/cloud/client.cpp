#include "cloud/client.hpp"

#include "cloud/connection.hpp"
#include "cloud/endpoint.hpp"
#include "cloud/error_body.hpp"
#include "cloud/exchange.hpp"
#include "cloud/exec_reader.hpp"
#include "cloud/pool.hpp"
#include "cloud/wire.hpp"

#include <boost/beast/core/string.hpp>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

namespace sandboxd::cloud {

namespace asio = boost::asio;

namespace {

using clock = connection::clock;

constexpr std::string_view sandboxes_path = "/v1/sandboxes";
constexpr std::string_view json_type = "application/json";
constexpr std::string_view bytes_type = "application/octet-stream";
constexpr std::size_t largest_content = 100U << 20; // (P)
constexpr int most_pages = 200;
// All of an answer, however slowly it trickles, in units of the answer time-out; an upload has this
// speed at least.
constexpr int answers_in_all = 4;
constexpr std::size_t slowest_upload = 16U << 10; // bytes a second
// After a failed send the server may still have said why (413 before the body was read).
constexpr std::chrono::seconds last_words{2};

enum class connection_choice { pooled_if_possible, fresh };

// A connection on which a request was sent and the answer's header was read.
struct opened {
    std::shared_ptr<connection> from;
    std::unique_ptr<answer_reader> reader;
};

// A whole answer with a status of 2xx.
struct answer {
    std::string body;
    std::string link;
};

failure refuse(failure_kind kind, std::string message) {
    return failure{kind, 0, std::move(message), std::nullopt};
}

// What may stand in a header field: visible ASCII.
bool fit_for_header(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

bool is_page(const answer_reader& reader) {
    const std::string type = reader.field("Content-Type");
    static constexpr std::string_view html = "text/html";
    return type.size() >= html.size() &&
           boost::beast::iequals({type.data(), html.size()}, {html.data(), html.size()});
}

} // namespace

class client::impl : public std::enable_shared_from_this<impl> {
public:
    impl(asio::any_io_executor executor, client_options options)
        : options_(std::move(options)), at_(checked(options_.base_url)),
          pool_(std::make_shared<pool>(executor, options_.pool_idle)),
          executor_(std::move(executor)) {
        if (at_.tls) tls_ = std::make_shared<tls_context>(at_);
    }
    ~impl() { pool_->shut(); }

    void set_key(secret key) { key_ = std::move(key); }
    std::uint64_t requests() const noexcept { return requests_; }
    std::size_t idle_connections() const noexcept { return pool_->size(); }
    const client_options& options() const noexcept { return options_; }
    const endpoint& at() const noexcept { return at_; }
    const std::shared_ptr<pool>& home() const noexcept { return pool_; }
    const secret& key() const noexcept { return key_; }

    std::string target(std::string_view path) const { return at_.prefix + std::string(path); }
    // The target of a sandbox; empty if the id is none.
    std::string sandbox_target(std::string_view id, std::string_view rest) const {
        const auto segment = encode_segment(id);
        if (!segment) return {};
        return at_.prefix + std::string(sandboxes_path) + "/" + *segment + std::string(rest);
    }

    asio::awaitable<result<opened>> request(http_request what, connection_choice choice);
    asio::awaitable<result<answer>>
    call(http_request what, connection_choice choice = connection_choice::pooled_if_possible);
    // Reads the rest of an answer that is not an exec's stream, and sees to the connection.
    asio::awaitable<result<answer>> finish(opened from);

private:
    static endpoint checked(std::string_view base_url) {
        auto at = parse_endpoint(base_url);
        if (!at) throw std::invalid_argument(at.error());
        return std::move(*at);
    }

    asio::awaitable<result<std::shared_ptr<connection>>> obtain(connection_choice choice);
    clock::duration in_all(std::size_t upload) const {
        return answers_in_all * options_.answer_timeout +
               std::chrono::seconds(upload / slowest_upload);
    }

    client_options options_;
    endpoint at_;
    std::shared_ptr<tls_context> tls_;
    std::shared_ptr<pool> pool_;
    asio::any_io_executor executor_;
    secret key_;
    std::uint64_t requests_ = 0;
    std::optional<asio::ip::address> good_address_; // the last that answered is tried first
};

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
        const auto until = clock::now() + in_all(what.body.size());
        on.limit_step(options_.answer_timeout);
        on.limit_all(until);
        ++requests_;
        boost::system::error_code ec = co_await send(on, at_, options_.user_agent, key_, what);
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
    co_return answer{std::move(reader.body()), reader.field("Link")};
}

asio::awaitable<result<answer>> client::impl::call(http_request what, connection_choice choice) {
    auto from = co_await request(std::move(what), choice);
    if (!from) co_return from.error();
    co_return co_await finish(std::move(*from));
}

client::client(asio::any_io_executor executor, client_options options)
    : impl_(std::make_shared<impl>(std::move(executor), std::move(options))) {}

client::~client() {
    impl_->home()->shut();
}

void client::set_key(secret key) {
    impl_->set_key(std::move(key));
}
std::uint64_t client::requests() const noexcept {
    return impl_->requests();
}
std::size_t client::idle_connections() const noexcept {
    return impl_->idle_connections();
}

namespace {

failure not_an_id() {
    return refuse(failure_kind::bad_request, "that is not the id of a sandbox");
}

} // namespace

asio::awaitable<result<std::vector<sandbox_info>>> client::list() {
    const auto self = impl_;
    std::vector<sandbox_info> all;
    std::set<std::string> ids;     // a listing that shifts between two pages may tell one twice
    std::set<std::string> targets; // a server that leads in circles
    std::string target = self->target(sandboxes_path);
    while (true) {
        targets.insert(target);
        const auto said = co_await self->call({"GET", target});
        if (!said) co_return said.error();
        auto page = parse_sandbox_page(said->body, said->link);
        if (!page) co_return page.error();
        for (sandbox_info& one : page->sandboxes) {
            if (ids.insert(one.id).second) all.push_back(std::move(one));
        }
        std::optional<std::string> next;
        switch (page->next.what) {
        case next_page::kind::none:
            if (page->total > static_cast<std::int64_t>(all.size())) {
                co_return refuse(failure_kind::bad_answer,
                                 "the listing is incomplete and does not say how to go on");
            }
            co_return all;
        case next_page::kind::reference:
            next = resolve_next(self->at(), target, page->next.value);
            break;
        case next_page::kind::cursor:
            next = self->target(sandboxes_path) + "?" + page->next.parameter + "=" +
                   encode_query_value(page->next.value);
            break;
        }
        if (!next || targets.contains(*next) || targets.size() >= most_pages) {
            co_return refuse(failure_kind::bad_answer, "the listing's next page leads nowhere");
        }
        target = std::move(*next);
    }
}

asio::awaitable<result<sandbox_info>> client::get(std::string id) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "");
    if (target.empty()) co_return not_an_id();
    const auto said = co_await self->call({"GET", target});
    if (!said) co_return said.error();
    co_return parse_sandbox(said->body);
}

asio::awaitable<result<std::string>> client::create(create_request request) {
    const auto self = impl_;
    const std::string body = create_body(request);
    const auto said = co_await self->call({"POST", self->target(sandboxes_path), json_type, body},
                                          connection_choice::fresh);
    if (!said) co_return said.error();
    co_return parse_created(said->body);
}

asio::awaitable<result<void>> client::start(std::string id) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "/start");
    if (target.empty()) co_return not_an_id();
    const auto said = co_await self->call({"POST", target});
    if (!said) co_return said.error();
    co_return parse_nothing(said->body);
}

asio::awaitable<result<void>> client::stop(std::string id) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "/stop");
    if (target.empty()) co_return not_an_id();
    const auto said = co_await self->call({"POST", target});
    if (!said) co_return said.error();
    co_return parse_nothing(said->body);
}

asio::awaitable<result<void>> client::remove(std::string id) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "");
    if (target.empty()) co_return not_an_id();
    const auto said = co_await self->call({"DELETE", target});
    if (!said) co_return said.error();
    co_return parse_nothing(said->body);
}

asio::awaitable<result<std::vector<plan_info>>> client::catalog() {
    const auto self = impl_;
    const auto said = co_await self->call({"GET", self->target(sandboxes_path) + "/catalog"});
    if (!said) co_return said.error();
    co_return parse_catalog(said->body);
}

asio::awaitable<result<void>> client::put_content(std::string id, std::string path,
                                                  std::string bytes) {
    const auto self = impl_;
    const std::string target =
        self->sandbox_target(id, "/fs/content?path=" + encode_query_value(path));
    if (target.empty()) co_return not_an_id();
    if (bytes.size() > largest_content) {
        co_return refuse(failure_kind::too_large,
                         "a file of more than 100 MiB cannot be sent in one piece");
    }
    const auto said = co_await self->call({"PUT", target, bytes_type, bytes});
    if (!said) co_return said.error();
    co_return parse_nothing(said->body);
}

asio::awaitable<result<std::unique_ptr<exec_stream>>>
client::exec(std::string id, std::vector<std::string> argv, std::chrono::seconds timeout) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "/exec");
    if (target.empty()) co_return not_an_id();
    const std::string body = exec_body(argv, timeout);
    auto from = co_await self->request({"POST", target, json_type, body},
                                       connection_choice::pooled_if_possible);
    if (!from) co_return from.error();
    const int status = from->reader->status();
    if (status >= 200 && status <= 299 && is_page(*from->reader)) {
        co_return failure{failure_kind::bad_answer, status, "the answer is a page, not the API's",
                          std::nullopt};
    }
    if (status != 200) {
        const auto said = co_await self->finish(std::move(*from));
        if (!said) co_return said.error();
        co_return failure{failure_kind::bad_answer, status,
                          "HTTP " + std::to_string(status) + " to an exec", std::nullopt};
    }
    co_return make_exec_stream(self->home(), std::move(from->from), std::move(from->reader),
                               self->options().max_line, self->key());
}

} // namespace sandboxd::cloud
