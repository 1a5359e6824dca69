#include "exec/outcome.hpp"

#include "core/shim_background.hpp"
#include "core/shim_outcome.hpp"
#include "exec/shim_call.hpp"

#include <chrono>
#include <memory>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds ps_limit{30};

} // namespace

asio::awaitable<std::optional<core::exec_exit>> ask_outcome(sandbox::account& account,
                                                            std::string sandbox_id,
                                                            std::string shim, std::string exec_id) {
    auto sent = co_await account.cloud().exec(sandbox_id, core::shim_ps(shim), ps_limit);
    account.observe(sent);
    if (!sent.has_value()) {
        co_return std::nullopt;
    }
    const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    core::shim_outcome outcome(exec_id);
    const auto take = [&](core::shim_frame& frame) {
        outcome.take(frame);
        return !outcome.exit();
    };
    co_await read_shim(*stream, take);
    co_return outcome.exit();
}

} // namespace sandboxd::exec
