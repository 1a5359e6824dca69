#include "exec/inside_probe.hpp"

#include "core/shim_background.hpp"
#include "exec/shim_call.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

using sandbox::background_answer;

namespace {

constexpr std::chrono::seconds ps_limit{30};
constexpr std::chrono::seconds patience{45}; // with the platform's answer, in all

background_answer failed(std::string why) {
    return {core::background::failed, std::move(why)};
}

} // namespace

asio::awaitable<background_answer> inside_probe::ask(std::string sandbox_id) {
    using namespace asio::experimental::awaitable_operators;
    const auto question = [&]() -> asio::awaitable<background_answer> {
        if (const std::optional<std::string> why = keeper_.unusable(sandbox_id)) {
            co_return background_answer{core::background::unknown, "it has no shim: " + *why};
        }
        std::optional<background_answer> answer = co_await ask_shim(sandbox_id);
        if (answer) {
            co_return *answer;
        }
        const install_outcome put_back = co_await keeper_.install(sandbox_id);
        if (!put_back.unusable.empty()) {
            co_return background_answer{core::background::unknown,
                                        "it has no shim: " + put_back.unusable};
        }
        if (put_back.installed) {
            answer = co_await ask_shim(sandbox_id);
        }
        co_return answer.value_or(failed("the shim is not there"));
    };
    asio::steady_timer timer(executor_, patience);
    const auto first = co_await (question() || timer.async_wait(asio::use_awaitable));
    if (first.index() == 0) {
        co_return std::get<0>(first);
    }
    co_return failed("no answer in time");
}

asio::awaitable<std::optional<background_answer>> inside_probe::ask_shim(std::string sandbox_id) {
    if (const std::optional<cloud::failure> held = account_.held_back()) {
        co_return failed(held->message);
    }
    auto sent = co_await account_.cloud().exec(sandbox_id, core::shim_ps(keeper_.path()), ps_limit);
    account_.observe(sent);
    if (!sent.has_value()) {
        const cloud::failure failure = sent.error();
        if (failure.kind == cloud::failure_kind::conflict ||
            failure.kind == cloud::failure_kind::not_found) {
            // It does not run, so nothing in it does; what it is doing shows when it is stopped.
            co_return background_answer{core::background::none, {}};
        }
        co_return failed(failure.message);
    }
    const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    core::shim_background report;
    const auto take = [&](core::shim_frame& frame) {
        report.take(frame);
        return true;
    };
    const shim_words words = co_await read_shim(*stream, take);
    if (!words.broken.empty()) {
        co_return failed("the shim's answer makes no sense: " + words.broken);
    }
    if (report.complete()) {
        co_return background_answer{report.what(), report.text()};
    }
    if (words.greeted) {
        co_return failed("the shim's answer was cut short");
    }
    if (const auto* cut = std::get_if<cloud::exec_cut>(&*words.end)) {
        co_return failed(cut->why.message);
    }
    co_return std::nullopt;
}

asio::awaitable<void> inside_probe::keep_awake(std::string sandbox_id) {
    if (!keeper_.unusable(sandbox_id) || account_.held_back()) {
        co_return; // followers of the shim leave and come back often enough
    }
    using namespace asio::experimental::awaitable_operators;
    const std::vector<std::string> nothing{"/bin/true"};
    auto sent = co_await account_.cloud().exec(sandbox_id, nothing, ps_limit);
    account_.observe(sent);
    if (!sent.has_value()) {
        co_return;
    }
    const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    const auto ends = [&]() -> asio::awaitable<void> {
        for (bool going_on = true; going_on;) {
            const cloud::exec_event event = co_await stream->next();
            going_on = std::holds_alternative<cloud::exec_output>(event) ||
                       std::holds_alternative<cloud::exec_heartbeat>(event);
        }
    };
    asio::steady_timer timer(executor_, patience);
    co_await (ends() || timer.async_wait(asio::use_awaitable));
}

} // namespace sandboxd::exec
