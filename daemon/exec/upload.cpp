#include "exec/upload.hpp"

#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

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

} // namespace sandboxd::exec
