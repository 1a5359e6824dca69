// What the calls of client.hpp share: a request on a pooled connection, and its answer read to the
// end. Of this directory only.
//
// Owned by the client and by the calls under way. Errors are `failure` values; cancelled, it throws
// as Asio does.
#pragma once

#include "cloud/client.hpp"

#include "cloud/connection.hpp"
#include "cloud/endpoint.hpp"
#include "cloud/exchange.hpp"
#include "cloud/pool.hpp"

#include <boost/asio/ip/address.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::cloud {

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
    std::optional<std::chrono::system_clock::time_point> date;
};

failure refuse(failure_kind kind, std::string message);

class client::impl {
public:
    impl(boost::asio::any_io_executor executor, client_options options);
    ~impl() { pool_->shut(); }

    void set_key(secret key) { key_ = std::move(key); }
    std::uint64_t requests() const noexcept { return requests_; }
    std::size_t idle_connections() const noexcept { return pool_->size(); }
    const client_options& options() const noexcept { return options_; }
    const endpoint& at() const noexcept { return at_; }
    const std::shared_ptr<pool>& home() const noexcept { return pool_; }
    const secret& key() const noexcept { return key_; }

    std::string sandboxes_target() const;
    // The target of a sandbox, or of a file in it; empty if the id is none.
    std::string sandbox_target(std::string_view id, std::string_view rest) const;
    std::string content_target(std::string_view id, std::string_view path) const;

    boost::asio::awaitable<result<opened>> request(http_request what, connection_choice choice);
    boost::asio::awaitable<result<answer>>
    call(http_request what, connection_choice choice = connection_choice::pooled_if_possible);
    // Tells the Date of an answer that has proved to be the API's: a proxy's page, an error, what
    // was cut short or empty says nothing about the time.
    template <class T>
    result<T> believed(const answer& said, result<T> parsed) const {
        if (parsed.has_value() && !said.body.empty() && options_.on_date) {
            options_.on_date(said.date);
        }
        return parsed;
    }
    // Reads the rest of an answer that is not an exec's stream, and sees to the connection.
    boost::asio::awaitable<result<answer>> finish(opened from);
    // The rest of a good answer into a file, as get_content promises.
    boost::asio::awaitable<result<std::uint64_t>>
    save(opened from, int fd, std::uint64_t offset, std::uint64_t limit, std::uint64_t* received);

private:
    // How long one exchange may take that carries so many bytes.
    connection::clock::duration in_all(std::uint64_t transfer) const;
    static endpoint checked(std::string_view base_url); // throws std::invalid_argument

    boost::asio::awaitable<result<std::shared_ptr<connection>>> obtain(connection_choice choice);

    client_options options_;
    endpoint at_;
    std::shared_ptr<tls_context> tls_;
    std::shared_ptr<pool> pool_;
    boost::asio::any_io_executor executor_;
    secret key_;
    std::uint64_t requests_ = 0;
    std::optional<boost::asio::ip::address> good_address_; // the last that answered is tried first
};

} // namespace sandboxd::cloud
