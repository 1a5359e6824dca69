#include "exec/shim_call.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <utility>
#include <variant>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds call_limit{30}; // the platform's clock for it
constexpr std::chrono::seconds farewell{2};

bool goes_on(const cloud::exec_event& event) {
    return std::holds_alternative<cloud::exec_output>(event) ||
           std::holds_alternative<cloud::exec_heartbeat>(event);
}

asio::awaitable<void> read_rest(asio::any_io_executor executor,
                                std::unique_ptr<cloud::exec_stream> stream) {
    using namespace asio::experimental::awaitable_operators;
    const auto rest = [&]() -> asio::awaitable<void> {
        for (bool more = true; more;) {
            const cloud::exec_event event = co_await stream->next();
            more = goes_on(event);
        }
    };
    asio::steady_timer patience(executor, farewell);
    co_await (rest() || patience.async_wait(asio::use_awaitable));
}

asio::awaitable<shim_reply> read_reply(cloud::exec_stream& stream, const std::string& wanted) {
    shim_reply reply;
    const auto take = [&](core::shim_frame& frame) {
        auto* note = std::get_if<core::shim_note>(&frame);
        if (note != nullptr && (note->name == wanted || note->name == "error")) {
            reply.note = std::move(*note);
        }
        return !reply.note;
    };
    const shim_words words = co_await read_shim(stream, take);
    reply.spoke = words.greeted;
    if (words.end) {
        if (const auto* cut = std::get_if<cloud::exec_cut>(&*words.end)) {
            reply.failure = cut->why;
        }
    }
    co_return reply;
}

} // namespace

asio::awaitable<shim_words> read_shim(cloud::exec_stream& stream,
                                      std::function<bool(core::shim_frame&)> take) {
    constexpr std::size_t most_said = 200;
    shim_words words;
    core::shim_parser parser;
    for (;;) {
        cloud::exec_event event = co_await stream.next();
        if (!goes_on(event)) {
            words.end = std::move(event);
            co_return words;
        }
        const auto* output = std::get_if<cloud::exec_output>(&event);
        if (output == nullptr) {
            continue;
        }
        if (output->is_stderr) { // the shim says nothing there, but who should run it may
            words.said += output->text.substr(0, most_said - words.said.size());
            continue;
        }
        parser.feed(output->text);
        while (std::optional<core::shim_frame> frame = parser.next()) {
            words.greeted = true;
            if (!take(*frame)) {
                co_return words;
            }
        }
        words.broken = parser.broken(); // then how it ends still counts
    }
}

void read_to_the_end(asio::any_io_executor executor, std::unique_ptr<cloud::exec_stream> stream) {
    asio::co_spawn(executor, read_rest(executor, std::move(stream)), asio::detached);
}

asio::awaitable<shim_reply> call_shim(asio::any_io_executor executor, sandbox::account& account,
                                      std::string sandbox_id, std::vector<std::string> argv,
                                      std::string wanted, std::chrono::milliseconds patience) {
    using namespace asio::experimental::awaitable_operators;
    auto sent = co_await account.cloud().exec(sandbox_id, std::move(argv), call_limit);
    account.observe(sent);
    if (!sent.has_value()) {
        shim_reply refused;
        refused.failure = sent.error();
        co_return refused;
    }
    std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    asio::steady_timer timer(executor, patience);
    auto first = co_await (read_reply(*stream, wanted) || timer.async_wait(asio::use_awaitable));
    if (first.index() != 0) {
        shim_reply late;
        late.failure = cloud::failure{cloud::failure_kind::interrupted, 0,
                                      "the sandbox did not answer in time", std::nullopt};
        co_return late;
    }
    shim_reply reply = std::move(std::get<0>(first));
    if (reply.note) {
        read_to_the_end(executor, std::move(stream));
    }
    co_return reply;
}

} // namespace sandboxd::exec
