#include "cloud/connection.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

namespace sandboxd::cloud {

namespace asio = boost::asio;

namespace {

constexpr auto as_result = asio::as_tuple(asio::use_awaitable);

failure unreachable(std::string message) {
    return failure{failure_kind::unreachable, 0, std::move(message), std::nullopt};
}

// A peer that is gone without a word (a lost network, a NAT that forgot us) is noticed by the
// kernel within a minute, also on an exec's stream, which may rightly be silent for hours.
void set_options(asio::ip::tcp::socket& socket) {
    boost::system::error_code ignored;
    socket.set_option(asio::ip::tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    using seconds_option = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
    using interval_option = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
    using count_option = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
    socket.set_option(seconds_option(30), ignored);
    socket.set_option(interval_option(10), ignored);
    socket.set_option(count_option(3), ignored);
}

} // namespace

std::shared_ptr<connection> connection::make(asio::any_io_executor executor,
                                             std::shared_ptr<tls_context> tls) {
    return std::make_shared<connection>(passkey{}, std::move(executor), std::move(tls));
}

connection::connection(passkey, asio::any_io_executor executor, std::shared_ptr<tls_context> tls)
    : tls_(std::move(tls)), socket_(executor), timer_(executor) {}

connection::~connection() {
    close();
}

void connection::close() noexcept {
    // Without this OpenSSL would take the session for a broken one and not let it be resumed.
    if (secured_)
        SSL_set_shutdown(secured_->native_handle(), SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    error_code ignored;
    socket_.close(ignored);
}

void connection::watch() {
    watching_ = true;
    timer_.expires_at(deadline_);
    timer_.async_wait([weak = weak_from_this()](error_code ec) {
        const auto self = weak.lock();
        if (ec || !self) return; // set anew, or at rest
        self->watching_ = false;
        if (self->deadline_ == never) return;
        if (clock::now() < self->deadline_) {
            self->watch();
            return;
        }
        self->timed_out_ = true;
        error_code ignored;
        self->socket_.close(ignored); // ends the step that is under way
    });
}

void connection::begin_step() {
    timed_out_ = false;
    deadline_ = until_;
    if (step_.count() > 0) deadline_ = std::min(deadline_, clock::now() + step_);
    if (deadline_ != never && (!watching_ || deadline_ < timer_.expiry())) watch();
}

void connection::rest() {
    unlimited();
    end_step();
    timer_.cancel();
    watching_ = false;
}

connection::error_code connection::told(error_code ec) const {
    if (!ec) return ec;
    if (timed_out_) return asio::error::timed_out;
    if (ec == asio::error::operation_aborted) throw boost::system::system_error(ec);
    return ec;
}

asio::awaitable<connection::error_code> connection::connect(const tcp::endpoint& address) {
    error_code ec;
    socket_.close(ec);
    socket_.open(address.protocol(), ec);
    if (ec) co_return ec;
    set_options(socket_);
    begin_step();
    std::tie(ec) = co_await socket_.async_connect(address, as_result);
    end_step();
    co_return told(ec);
}

asio::awaitable<result<void>> connection::open(std::vector<tcp::endpoint> addresses,
                                               std::chrono::milliseconds timeout) {
    const auto self = shared_from_this();
    const auto until = clock::now() + timeout;
    error_code ec = asio::error::host_not_found;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
        // An address that does not answer leaves the others their share of the time.
        const auto left =
            std::max(until - clock::now(), clock::duration(std::chrono::milliseconds(1)));
        limit_step(std::chrono::ceil<std::chrono::milliseconds>(
            left / static_cast<long>(addresses.size() - i)));
        ec = co_await connect(addresses[i]);
        if (!ec) {
            peer_ = addresses[i];
            break;
        }
    }
    if (ec) co_return unreachable("cannot connect: " + ec.message());
    if (!tls_) co_return result<void>();

    secured_.emplace(socket_, tls_->native());
    tls_->prepare(secured_->native_handle());
    limit_step(timeout);
    begin_step();
    std::tie(ec) = co_await secured_->async_handshake(asio::ssl::stream_base::client, as_result);
    end_step();
    ec = told(ec);
    if (ec) {
        tls_->forget_session();
        co_return unreachable(tls_context::failure_text(secured_->native_handle(), ec.message()));
    }
    co_return result<void>();
}

asio::awaitable<connection::error_code>
connection::write(std::span<const asio::const_buffer> pieces) {
    std::array<asio::const_buffer, 2> left{};
    std::copy_n(pieces.begin(), std::min(pieces.size(), left.size()), left.begin());
    while (left[0].size() + left[1].size() > 0) {
        if (left[0].size() == 0) std::swap(left[0], left[1]);
        begin_step();
        error_code ec;
        std::size_t bytes = 0;
        if (secured_) {
            std::tie(ec, bytes) = co_await secured_->async_write_some(left[0], as_result);
        } else {
            std::tie(ec, bytes) = co_await socket_.async_write_some(left, as_result);
        }
        end_step();
        if (ec) co_return told(ec);
        const std::size_t of_first = std::min(bytes, left[0].size());
        left[0] += of_first;
        left[1] += bytes - of_first;
    }
    co_return error_code();
}

asio::awaitable<connection::transferred> connection::read_some(asio::mutable_buffer into) {
    begin_step();
    error_code ec;
    std::size_t bytes = 0;
    if (secured_) {
        std::tie(ec, bytes) = co_await secured_->async_read_some(into, as_result);
    } else {
        std::tie(ec, bytes) = co_await socket_.async_read_some(into, as_result);
    }
    end_step();
    // Bytes that came along with an error are kept by nobody: told() throws or the connection is
    // over.
    co_return transferred{told(ec), bytes};
}

bool connection::quiet() noexcept {
    if (!socket_.is_open()) return false;
    if (secured_ && SSL_pending(secured_->native_handle()) > 0) return false;
    char byte = 0;
    const auto got = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

asio::awaitable<result<std::vector<asio::ip::tcp::endpoint>>>
look_up(asio::any_io_executor executor, const endpoint& at, std::chrono::milliseconds timeout) {
    using tcp = asio::ip::tcp;
    std::vector<tcp::endpoint> out;
    boost::system::error_code ec;
    if (const auto address = asio::ip::make_address(at.host, ec); !ec) {
        out.emplace_back(address, at.port);
        co_return out;
    }

    // A look-up that has begun cannot be stopped, only no longer be waited for; so what it ends
    // into is shared.
    struct state {
        explicit state(const asio::any_io_executor& executor)
            : resolver(executor), wake(executor) {}
        tcp::resolver resolver;
        asio::steady_timer wake;
        tcp::resolver::results_type found;
        boost::system::error_code ec;
        bool done = false;
    };
    const auto shared = std::make_shared<state>(executor);
    shared->wake.expires_after(timeout);
    shared->resolver.async_resolve(
        at.host, std::to_string(at.port), tcp::resolver::numeric_service,
        [shared](boost::system::error_code error, tcp::resolver::results_type found) {
            shared->ec = error;
            shared->found = std::move(found);
            shared->done = true;
            shared->wake.cancel();
        });
    const auto [woken] = co_await shared->wake.async_wait(as_result);
    if (!shared->done) {
        shared->resolver.cancel();
        if (woken) throw boost::system::system_error(woken);
        co_return unreachable("looking up " + at.host + " took too long");
    }
    if (shared->ec)
        co_return unreachable("cannot look up " + at.host + ": " + shared->ec.message());
    for (const auto& entry : shared->found) {
        if (at.tls || is_loopback_address(entry.endpoint().address().to_string()))
            out.push_back(entry.endpoint());
    }
    if (out.empty())
        co_return unreachable(at.host +
                              " has no loopback address, and http:// is for loopback only");
    co_return out;
}

} // namespace sandboxd::cloud
