#include "exec/outcome.hpp"

#include "core/shim_background.hpp"
#include "core/shim_outcome.hpp"

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
    core::shim_parser parser;
    core::shim_outcome outcome(exec_id);
    while (!outcome.exit() && parser.broken().empty()) {
        const cloud::exec_event event = co_await stream->next();
        if (const auto* output = std::get_if<cloud::exec_output>(&event)) {
            if (!output->is_stderr) { // the shim says nothing there
                parser.feed(output->text);
            }
            while (const std::optional<core::shim_frame> frame = parser.next()) {
                outcome.take(*frame);
            }
        } else if (!std::holds_alternative<cloud::exec_heartbeat>(event)) {
            break;
        }
    }
    co_return outcome.exit();
}

} // namespace sandboxd::exec
