#include "cloud/client.hpp"

#include "cloud/client_impl.hpp"
#include "cloud/exec_reader.hpp"
#include "cloud/wire.hpp"

#include <boost/beast/core/string.hpp>

#include <set>
#include <utility>

namespace sandboxd::cloud {

namespace asio = boost::asio;

namespace {

constexpr std::string_view json_type = "application/json";
constexpr std::string_view bytes_type = "application/octet-stream";
constexpr int most_pages = 200;
constexpr std::size_t least_cut = 10; // sandboxes in an answer that may be a page

bool is_page(const answer_reader& reader) {
    const std::string type = reader.field("Content-Type");
    static constexpr std::string_view html = "text/html";
    return type.size() >= html.size() &&
           boost::beast::iequals({type.data(), html.size()}, {html.data(), html.size()});
}

} // namespace

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

failure too_much() {
    return refuse(failure_kind::too_large,
                  "a file of more than 100 MiB cannot be sent in one piece");
}

} // namespace

asio::awaitable<result<std::vector<sandbox_info>>> client::list() {
    const auto self = impl_;
    std::vector<sandbox_info> all;
    std::set<std::string> ids;     // a listing that shifts between two pages may tell one twice
    std::set<std::string> targets; // a server that leads in circles
    std::string target = self->sandboxes_target();
    bool guessing = false; // that there is more, and how to ask for it
    while (true) {
        targets.insert(target);
        const auto said = co_await self->call({"GET", target});
        if (!said) {
            const bool refused = said.error().kind == failure_kind::bad_request ||
                                 said.error().kind == failure_kind::not_found ||
                                 said.error().kind == failure_kind::not_found_unproven;
            if (guessing && refused) co_return all;
            co_return said.error();
        }
        auto page = self->believed(*said, parse_sandbox_page(said->body, said->link));
        if (!page) co_return page.error();
        const std::size_t known = all.size();
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
            // Many of them without a word of whether that is all (?): a server that cuts its
            // answers without saying so mostly goes on at an offset, and one that does not know
            // that answers as before, or refuses.
            if (page->total >= 0 || page->sandboxes.size() < least_cut || all.size() == known) {
                co_return all;
            }
            guessing = true;
            next = self->sandboxes_target() + "?offset=" + std::to_string(all.size());
            break;
        case next_page::kind::reference:
            next = resolve_next(self->at(), target, page->next.value);
            break;
        case next_page::kind::cursor:
            next = self->sandboxes_target() + "?" + page->next.parameter + "=" +
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
    co_return self->believed(*said, parse_sandbox(said->body));
}

asio::awaitable<result<std::string>> client::create(create_request request) {
    const auto self = impl_;
    const std::string body = create_body(request);
    const auto said = co_await self->call({"POST", self->sandboxes_target(), json_type, body},
                                          connection_choice::fresh);
    if (!said) co_return said.error();
    co_return self->believed(*said, parse_created(said->body));
}

asio::awaitable<result<void>> client::start(std::string id) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "/start");
    if (target.empty()) co_return not_an_id();
    const auto said = co_await self->call({"POST", target});
    if (!said) co_return said.error();
    co_return self->believed(*said, parse_nothing(said->body));
}

asio::awaitable<result<void>> client::stop(std::string id) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "/stop");
    if (target.empty()) co_return not_an_id();
    const auto said = co_await self->call({"POST", target});
    if (!said) co_return said.error();
    co_return self->believed(*said, parse_nothing(said->body));
}

asio::awaitable<result<void>> client::remove(std::string id) {
    const auto self = impl_;
    const std::string target = self->sandbox_target(id, "");
    if (target.empty()) co_return not_an_id();
    const auto said = co_await self->call({"DELETE", target});
    if (!said) co_return said.error();
    co_return self->believed(*said, parse_nothing(said->body));
}

asio::awaitable<result<std::vector<plan_info>>> client::catalog() {
    const auto self = impl_;
    const auto said = co_await self->call({"GET", self->sandboxes_target() + "/catalog"});
    if (!said) co_return said.error();
    co_return self->believed(*said, parse_catalog(said->body));
}

asio::awaitable<result<void>> client::put_content(std::string id, std::string path,
                                                  std::string bytes) {
    const auto self = impl_;
    const std::string target = self->content_target(id, path);
    if (target.empty()) co_return not_an_id();
    if (bytes.size() > largest_content) co_return too_much();
    const auto said = co_await self->call({"PUT", target, bytes_type, bytes});
    if (!said) co_return said.error();
    co_return self->believed(*said, parse_nothing(said->body));
}

asio::awaitable<result<void>> client::put_file(std::string id, std::string path, int fd,
                                               std::uint64_t offset, std::uint64_t size,
                                               std::uint64_t* sent) {
    const auto self = impl_;
    const std::string target = self->content_target(id, path);
    if (target.empty()) co_return not_an_id();
    if (size > largest_content) co_return too_much();
    if (sent != nullptr) *sent = 0;
    const file_stretch content{fd, offset, size, sent};
    const auto said = co_await self->call({"PUT", target, bytes_type, content});
    if (!said) co_return said.error();
    co_return self->believed(*said, parse_nothing(said->body));
}

asio::awaitable<result<std::uint64_t>> client::get_content(std::string id, std::string path, int fd,
                                                           std::uint64_t offset,
                                                           std::uint64_t limit,
                                                           std::uint64_t* received) {
    const auto self = impl_;
    const std::string target = self->content_target(id, path);
    if (target.empty()) co_return not_an_id();
    if (received != nullptr) *received = 0;
    auto from = co_await self->request({"GET", target}, connection_choice::pooled_if_possible);
    if (!from) co_return from.error();
    const int status = from->reader->status();
    if (status != 200) {
        const auto said = co_await self->finish(std::move(*from));
        if (!said) co_return said.error();
        co_return failure{failure_kind::bad_answer, status,
                          "HTTP " + std::to_string(status) + " to a request for a file",
                          std::nullopt};
    }
    co_return co_await self->save(std::move(*from), fd, offset, limit, received);
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
