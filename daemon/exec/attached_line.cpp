#include "exec/attached_line.hpp"

#include "core/attached_command.hpp"
#include "core/cloud_error.hpp"

#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds kill_limit{10}; // for the command that kills

} // namespace

attached_line::attached_line(sandbox::account& account, std::string sandbox_id, std::string exec_id,
                             core::prepared_command command, std::shared_ptr<start_files> files,
                             std::chrono::seconds server_limit)
    : account_(account), sandbox_id_(std::move(sandbox_id)), exec_id_(std::move(exec_id)),
      command_(std::move(command)), files_(std::move(files)), server_limit_(server_limit) {}

attached_line::attached_line(sandbox::account& account, std::string sandbox_id, std::string exec_id)
    : account_(account), sandbox_id_(std::move(sandbox_id)), exec_id_(std::move(exec_id)),
      sent_(true) {}

asio::awaitable<line_opened> attached_line::open() {
    if (std::optional<cloud::failure> held = account_.held_back()) {
        co_return line_opened(*held);
    }
    for (const core::upload& each : command_.uploads) {
        const auto put = co_await files_->put(sandbox_id_, each);
        if (!put.has_value()) {
            const cloud::failure failure = put.error();
            if (failure.effect_unknown()) {
                co_return line_opened(
                    core::error_from(failure, "putting the command's input in place"));
            }
            co_return line_opened(failure);
        }
    }
    if (given_up_) {
        co_return line_opened(cloud::failure{cloud::failure_kind::bad_request, 0,
                                             "it was given up before it was sent", std::nullopt});
    }
    sent_ = true;
    posted(true);
    auto sent = co_await account_.cloud().exec(sandbox_id_, command_.argv, server_limit_);
    account_.observe(sent);
    if (!sent.has_value()) {
        co_return line_opened(sent.error());
    }
    stream_ = std::move(*sent);
    co_return line_opened(line_open{});
}

asio::awaitable<line_event> attached_line::next() {
    for (;;) {
        cloud::exec_event event = co_await stream_->next();
        if (auto* output = std::get_if<cloud::exec_output>(&event)) {
            line_output piece{output->is_stderr, std::nullopt, std::move(output->text)};
            co_return line_event(std::move(piece));
        }
        if (const auto* exited = std::get_if<cloud::exec_exited>(&event)) {
            co_return line_event(*exited);
        }
        if (const auto* refused = std::get_if<cloud::exec_refused>(&event)) {
            co_return line_event(*refused);
        }
        if (const auto* cut = std::get_if<cloud::exec_cut>(&event)) {
            co_return line_event(*cut);
        }
    }
}

asio::awaitable<kill_outcome> attached_line::kill(core::kill_signal signal) {
    if (!sent_) {
        given_up_ = true;
        co_return kill_outcome{{}, core::kill_reach::before_start};
    }
    auto sent = co_await account_.cloud().exec(sandbox_id_, core::kill_command(exec_id_, signal),
                                               kill_limit);
    account_.observe(sent);
    if (!sent.has_value()) {
        const cloud::failure failure = sent.error();
        if (failure.kind == cloud::failure_kind::conflict) {
            co_return kill_outcome{}; // the sandbox does not run, so nothing in it does
        }
        const bool unknown = failure.kind == cloud::failure_kind::not_found;
        co_return kill_outcome{failure.message, core::kill_reach::so_far, false, unknown};
    }
    const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    for (;;) {
        const cloud::exec_event event = co_await stream->next();
        if (const auto* exited = std::get_if<cloud::exec_exited>(&event)) {
            if (exited->returncode == 0) {
                co_return kill_outcome{};
            }
            co_return kill_outcome{"some of them did not end", core::kill_reach::so_far, true};
        }
        if (const auto* refused = std::get_if<cloud::exec_refused>(&event)) {
            co_return kill_outcome{refused->message};
        }
        if (const auto* cut = std::get_if<cloud::exec_cut>(&event)) {
            co_return kill_outcome{cut->why.message};
        }
    }
}

} // namespace sandboxd::exec
