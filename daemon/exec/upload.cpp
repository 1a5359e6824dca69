#include "exec/upload.hpp"

#include "exec/shim_call.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds removal_limit{30}; // the platform's clock for it
// What the platform had received when a call was cut may be written so much later.
constexpr std::chrono::seconds late_write{5};

} // namespace

asio::awaitable<cloud::result<void>> put_upload(sandbox::account& account, std::string sandbox_id,
                                                core::upload what) {
    if (what.fd >= 0) {
        const auto put =
            co_await account.cloud().put_file(sandbox_id, what.path, what.fd, 0, what.size);
        co_return account.observe(put);
    }
    const auto put =
        co_await account.cloud().put_content(sandbox_id, what.path, std::move(what.bytes));
    co_return account.observe(put);
}

asio::awaitable<void> remove_uploads(asio::any_io_executor executor, sandbox::account& account,
                                     std::string sandbox_id, std::vector<std::string> paths) {
    std::vector<std::string> argv = core::remove_uploads(std::move(paths));
    auto sent = co_await account.cloud().exec(sandbox_id, std::move(argv), removal_limit);
    account.observe(sent);
    if (sent.has_value()) {
        read_to_the_end(std::move(executor), std::move(*sent));
    }
}

asio::awaitable<cloud::result<void>> start_files::put(std::string sandbox_id, core::upload what) {
    const auto self = shared_from_this();
    sandbox_id_ = sandbox_id;
    const auto [path, first] = paths_.insert(what.path); // now: it may be cancelled
    putting_ = true;
    auto done = co_await put_upload(account_, std::move(sandbox_id), std::move(what));
    putting_ = false;
    if (first && !done.has_value() && !done.error().effect_unknown()) {
        paths_.erase(path);
    }
    co_return done;
}

void start_files::take_away() {
    if (!paths_.empty()) {
        asio::co_spawn(
            executor_, [self = shared_from_this()] { return self->remove(); }, asio::detached);
    }
}

asio::awaitable<void> start_files::remove() {
    const bool cut = putting_;
    const std::vector<std::string> paths(paths_.begin(), paths_.end());
    co_await remove_uploads(executor_, account_, sandbox_id_, paths);
    if (cut) {
        asio::steady_timer pause(executor_, late_write);
        co_await pause.async_wait(asio::use_awaitable);
        co_await remove_uploads(executor_, account_, sandbox_id_, paths);
    }
}

} // namespace sandboxd::exec
