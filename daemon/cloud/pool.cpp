#include "cloud/pool.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>

#include <algorithm>
#include <utility>

namespace sandboxd::cloud {

namespace asio = boost::asio;

namespace {

// More than this are only wanted during a burst.
constexpr std::size_t most_idle = 16;
constexpr std::chrono::milliseconds longest_wait{100};

} // namespace

pool::pool(asio::any_io_executor executor, std::chrono::milliseconds idle)
    : executor_(std::move(executor)), longest_idle_(idle), timer_(executor_) {}

std::shared_ptr<connection> pool::take() {
    const auto now = clock::now();
    while (!idle_.empty()) {
        resting last = std::move(idle_.back());
        idle_.pop_back();
        if (last.until > now && last.what->quiet()) return std::move(last.what);
    }
    return nullptr;
}

void pool::give_back(std::shared_ptr<connection> from,
                     std::optional<std::chrono::seconds> server_idle) {
    auto idle = longest_idle_;
    if (server_idle)
        idle = std::min<std::chrono::milliseconds>(idle, *server_idle - std::chrono::seconds(1));
    if (shut_ || idle.count() <= 0 || !from->quiet()) return;
    from->rest();
    from->mark_pooled();
    if (idle_.size() == most_idle) idle_.erase(idle_.begin());
    idle_.push_back({std::move(from), clock::now() + idle});
    if (!watching_) watch();
    wake_waiters();
}

void pool::clear() noexcept {
    idle_.clear();
}

void pool::shut() noexcept {
    shut_ = true;
    clear();
    timer_.cancel();
    for (const auto& one : returning_)
        one->close();
}

void pool::watch() {
    if (idle_.empty()) return;
    const auto earliest =
        std::min_element(idle_.begin(), idle_.end(),
                         [](const resting& a, const resting& b) { return a.until < b.until; });
    watching_ = true;
    timer_.expires_at(earliest->until);
    timer_.async_wait([weak = weak_from_this()](boost::system::error_code ec) {
        const auto self = weak.lock();
        if (ec || !self) return;
        self->watching_ = false;
        const auto now = clock::now();
        std::erase_if(self->idle_, [now](const resting& one) { return one.until <= now; });
        self->watch();
    });
}

pool::returning::returning(std::shared_ptr<pool> to, std::shared_ptr<connection> what)
    : to_(std::move(to)) {
    place_ = to_->returning_.insert(to_->returning_.end(), std::move(what));
}

pool::returning::~returning() {
    to_->returning_.erase(place_);
    to_->wake_waiters();
}

void pool::wake_waiters() {
    for (asio::steady_timer* waiter : waiters_)
        waiter->cancel();
}

asio::awaitable<void> pool::wait_for_return() {
    if (returning_.size() <= waiters_.size() || connect_time_.count() <= 0) co_return;
    const auto self = shared_from_this();
    asio::steady_timer timer(executor_, std::min<clock::duration>(connect_time_, longest_wait));
    struct registration {
        std::list<asio::steady_timer*>& in;
        std::list<asio::steady_timer*>::iterator at;
        ~registration() { in.erase(at); }
    };
    bool stay = true;
    while (stay) {
        boost::system::error_code ec;
        {
            const registration here{waiters_, waiters_.insert(waiters_.end(), &timer)};
            std::tie(ec) = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
        }
        const auto state = co_await asio::this_coro::cancellation_state;
        if (state.cancelled() != asio::cancellation_type::none) {
            throw boost::system::system_error(asio::error::operation_aborted);
        }
        // Woken, but another waiter was quicker: go on waiting while there is something to wait
        // for.
        stay = ec && idle_.empty() && !returning_.empty() && timer.expiry() > clock::now();
    }
}

} // namespace sandboxd::cloud
