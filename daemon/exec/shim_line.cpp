#include "exec/shim_line.hpp"

#include "core/cloud_error.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <stdexcept>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

using link = core::shim_link;

constexpr std::chrono::seconds platform_cap{1800}; // on one command (P); the shim leaves well before
constexpr std::chrono::seconds helper_limit{30};   // for `shim kill` and `shim ack`
constexpr std::uint64_t tell_every = 64U << 20;    // bytes; a quarter of the shim's spool

std::chrono::milliseconds now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch());
}

} // namespace

shim_line::shim_line(asio::any_io_executor executor, sandbox::account& account, shim_keeper& keeper, plan what)
    : executor_(std::move(executor)), account_(account), keeper_(keeper), plan_(std::move(what)),
      link_(plan_.installed, std::nullopt), step_(link_.begin()) {}

asio::awaitable<line_opened> shim_line::open() {
    for (;;) {
        if (step_.what == link::action::refused) {
            co_return line_opened(*step_.failure);
        }
        if (step_.what == link::action::unusable) {
            co_return line_opened(line_unsuitable{step_.text});
        }
        if (link_.heard() || step_.what == link::action::ended) {
            co_return line_opened(line_open{});
        }
        step_ = co_await perform(std::move(step_));
    }
}

asio::awaitable<line_event> shim_line::next() {
    for (;;) {
        if (step_.what == link::action::deliver) {
            line_output piece{step_.data.is_stderr, step_.data.offset, std::move(step_.data.bytes)};
            step_ = link::step{};
            co_return line_event(std::move(piece));
        }
        if (step_.what == link::action::ended) {
            co_return line_event(link_.exit());
        }
        if (step_.what == link::action::refused || step_.what == link::action::unusable) {
            throw std::logic_error("a command that was heard of was taken back");
        }
        step_ = co_await perform(std::move(step_));
    }
}

asio::awaitable<link::step> shim_line::perform(link::step step) {
    switch (step.what) {
    case link::action::install: {
        const install_outcome outcome = co_await keeper_.install(plan_.sandbox_id);
        if (outcome.installed) {
            co_return link_.on_installed();
        }
        if (outcome.failure) {
            co_return link_.on_install_failed(now(), *outcome.failure);
        }
        co_return link_.on_not_installed(outcome.unusable, true);
    }
    case link::action::run: co_return co_await post(true);
    case link::action::follow: co_return co_await post(false);
    case link::action::wait: {
        stream_.reset();
        asio::steady_timer timer(executor_, step.delay);
        co_await timer.async_wait(asio::use_awaitable);
        co_return link_.on_waited();
    }
    default: co_return co_await read();
    }
}

asio::awaitable<link::step> shim_line::post(bool run) {
    stream_.reset();
    parser_ = core::shim_parser();
    if (run) {
        for (const core::upload& each : plan_.run.uploads) {
            const auto put =
                account_.observe(co_await account_.cloud().put_content(plan_.sandbox_id, each.path, each.bytes));
            if (!put.has_value()) {
                co_return link_.on_install_failed(now(), put.error());
            }
        }
    }
    std::vector<std::string> argv = plan_.run.argv;
    if (!run) {
        argv = core::shim_follow(keeper_.path(), plan_.exec_id, link_.pos(), plan_.digest, plan_.longest);
    }
    auto sent = co_await account_.cloud().exec(plan_.sandbox_id, std::move(argv), platform_cap);
    account_.observe(sent);
    if (!sent.has_value()) {
        co_return link_.on_post_failed(now(), sent.error());
    }
    stream_ = std::move(*sent);
    co_return link_.on_answering();
}

asio::awaitable<link::step> shim_line::read() {
    for (;;) {
        if (const std::optional<core::shim_frame> frame = parser_.next()) {
            co_return link_.on_frame(now(), *frame);
        }
        if (!parser_.broken().empty()) {
            co_return link_.on_terminal(now(), parser_.broken());
        }
        const cloud::exec_event event = co_await stream_->next();
        if (const auto* output = std::get_if<cloud::exec_output>(&event)) {
            if (!output->is_stderr) { // the shim says nothing there
                parser_.feed(output->text);
            }
        } else if (const auto* exited = std::get_if<cloud::exec_exited>(&event)) {
            co_return link_.on_terminal(now(), "the shim ended with code " + std::to_string(exited->returncode));
        } else if (const auto* error = std::get_if<cloud::exec_refused>(&event)) {
            co_return link_.on_terminal(now(), error->message);
        } else if (const auto* cut = std::get_if<cloud::exec_cut>(&event)) {
            co_return link_.on_cut(now(), cut->why.message);
        }
    }
}

asio::awaitable<std::string> shim_line::kill(core::kill_signal signal) {
    auto sent = co_await account_.cloud().exec(plan_.sandbox_id, core::shim_kill(keeper_.path(), plan_.exec_id, signal),
                                               helper_limit);
    account_.observe(sent);
    if (!sent.has_value()) {
        const cloud::failure failure = sent.error();
        if (failure.kind == cloud::failure_kind::conflict) {
            co_return std::string(); // the sandbox does not run, so nothing in it does
        }
        co_return failure.message;
    }
    const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    core::shim_parser parser;
    for (;;) {
        const cloud::exec_event event = co_await stream->next();
        if (const auto* output = std::get_if<cloud::exec_output>(&event)) {
            if (!output->is_stderr) {
                parser.feed(output->text);
            }
            while (const std::optional<core::shim_frame> frame = parser.next()) {
                const auto* note = std::get_if<core::shim_note>(&*frame);
                if (note != nullptr && note->name == "killed") {
                    co_return note->text("confirmed") == "yes" ? std::string() : std::string("some of them did not end");
                }
                if (note != nullptr && note->name == "error") {
                    co_return "the shim failed: " + std::string(note->text("name"));
                }
            }
        } else if (const auto* cut = std::get_if<cloud::exec_cut>(&event)) {
            co_return cut->why.message;
        } else if (!std::holds_alternative<cloud::exec_heartbeat>(event)) {
            co_return std::string("the shim did not say how the killing went");
        }
    }
}

// Rarely: only for commands that print more than the shim keeps does it matter when.
void shim_line::acknowledged(std::uint64_t pos) {
    if (telling_ || pos < told_pos_ + tell_every) {
        return;
    }
    telling_ = true;
    asio::co_spawn(executor_, [self = shared_from_this(), pos] { return self->send_acknowledgement(pos); },
                   asio::detached);
}

asio::awaitable<void> shim_line::send_acknowledgement(std::uint64_t pos) {
    auto sent = co_await account_.cloud().exec(
        plan_.sandbox_id, core::shim_acknowledge(keeper_.path(), plan_.exec_id, pos), helper_limit);
    account_.observe(sent);
    if (sent.has_value()) {
        const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
        for (bool going_on = true; going_on;) {
            const cloud::exec_event event = co_await stream->next();
            going_on = std::holds_alternative<cloud::exec_output>(event) ||
                       std::holds_alternative<cloud::exec_heartbeat>(event);
        }
        told_pos_ = pos;
    }
    telling_ = false;
}

} // namespace sandboxd::exec
