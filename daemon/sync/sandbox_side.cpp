#include "sync/sandbox_side.hpp"

#include "core/backoff.hpp"
#include "core/cloud_error.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/serialize.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

namespace sandboxd::sync {
namespace asio = boost::asio;

namespace {

constexpr int most_answers = 8; // over about half a minute
constexpr std::chrono::minutes longest_outage{10};
constexpr std::chrono::seconds platform_cap{1800};
constexpr std::chrono::seconds silence{120}; // the platform's heartbeats come far more often
constexpr std::size_t most_output = 4U << 20;

// Waits before the next try; false if there have been enough. A connection that is lost comes back
// in its own time, however often it is tried; an answer that repeats itself is soon the answer.
class patience {
public:
    patience(asio::any_io_executor executor, sandbox::account& account)
        : account_(account), timer_(std::move(executor)) {}

    asio::awaitable<bool> wait(const cloud::failure& failure) {
        if (failure.kind == cloud::failure_kind::unreachable ||
            failure.kind == cloud::failure_kind::interrupted) {
            const auto now = std::chrono::steady_clock::now();
            if (!lost_at_) lost_at_ = now;
            if (now - *lost_at_ >= longest_outage) co_return false;
        } else {
            lost_at_.reset();
            if (++answers_ >= most_answers) co_return false;
        }
        const double jitter = account_.jitter();
        std::chrono::milliseconds delay = core::jittered(delays_.next(), jitter);
        if (failure.retry_after) {
            delay = std::max(delay, core::not_before(*failure.retry_after, jitter));
        }
        timer_.expires_after(delay);
        co_await timer_.async_wait(asio::use_awaitable);
        co_return true;
    }

private:
    sandbox::account& account_;
    core::backoff delays_{std::chrono::milliseconds(100), std::chrono::milliseconds(8000)};
    asio::steady_timer timer_;
    std::optional<std::chrono::steady_clock::time_point> lost_at_; // nothing was answered since
    int answers_ = 0;
};

bool may_be_full(const cloud::failure& failure) {
    return failure.status != 0 && (failure.kind == cloud::failure_kind::server_error ||
                                   failure.kind == cloud::failure_kind::bad_request);
}

} // namespace

void throw_lost_again(const sandbox_lost& why) {
    if (why.name() != error_name::sandbox_gone) throw why;
    rpc_error told{
        error_name::sync_failed,
        why.what() + std::string("; yet the sandbox was said to run when this was begun anew"),
        "if something other than a directory is at /workspace/.deepinfra-sandboxd, or at "
        "sync in it, remove that (this shows it: deepinfra-sandboxd exec -- ls -la "
        "/workspace/.deepinfra-sandboxd); else try again in a minute"};
    told.sandbox_id = why.sandbox_id;
    throw told;
}

void throw_if_overruled(const sandbox::lease& held, const sandbox_lost& why) {
    if (!held.overruled()) return;
    rpc_error told(error_name::cancelled,
                   "the sandbox was stopped or deleted by force while files were transferred");
    told.sandbox_id = why.sandbox_id;
    throw told;
}

// Of one call: an answer, or why there is none.
struct sandbox_side::outcome {
    std::optional<json::object> answer;
    std::optional<cloud::failure> failure; // worth another try where it is transient
    std::string broken;                    // the helper itself failed
};

void sandbox_side::fail(const rpc_error& error) const {
    rpc_error told(error);
    told.sandbox_id = sandbox_id_;
    throw told;
}

void sandbox_side::fail(const cloud::failure& failure, std::string_view doing) const {
    const bool lost = failure.kind == cloud::failure_kind::conflict ||
                      failure.kind == cloud::failure_kind::not_found;
    sandbox_lost told(core::error_from(failure, doing));
    told.sandbox_id = sandbox_id_;
    if (lost) throw told;
    fail(told);
}

void sandbox_side::fail(const helper_error& error) const {
    const std::string& detail = error.text.empty() ? error.name : error.text;
    if (error.name == "no_space") {
        fail(
            {error_name::no_space, "the sandbox's disk is full (" + detail + ")",
             "make room in the sandbox (this shows what takes it: "
             "deepinfra-sandboxd exec -- du -sh /workspace), or choose a plan with a larger disk"});
    }
    if (error.name == "too_large") {
        fail({error_name::too_large,
              "there are " + detail + " bytes, more than was asked for at the most"});
    }
    if (error.name == "missing") {
        fail({error_name::file_not_found, "there is no such file in the sandbox"});
    }
    if (error.name == "outside") {
        fail({error_name::path_outside_workspace, "the path leads out of what can be transferred"});
    }
    if (error.name == "parts_missing") {
        parts_lost told(
            {error_name::sync_failed,
             "what the transfer had in the sandbox was removed there before it was done"});
        told.sandbox_id = sandbox_id_;
        throw told;
    }
    fail({error_name::sync_failed, "in the sandbox: " + detail});
}

struct sandbox_side::upload {
    std::function<asio::awaitable<cloud::result<void>>()> send;
    std::uint64_t size = 0;
    json::object sweep; // arguments
    std::string_view doing;
};

// How the platform says that the disk is full is not known. So whatever answer might mean that has
// what nobody needs taken away, which also tells what room there is, and is tried once more.
asio::awaitable<void> sandbox_side::insist(upload what) {
    patience more(executor_, account_);
    for (bool swept = false;;) {
        const auto put = account_.observe(co_await what.send());
        if (put.has_value()) co_return;
        const cloud::failure failure = put.error();
        if (may_be_full(failure)) {
            const std::optional<std::uint64_t> room = co_await make_room(what.sweep);
            if (swept && room && *room < what.size) {
                fail(helper_error{"no_space", std::to_string(*room) + " bytes are free"});
            }
            if (!std::exchange(swept, true)) continue;
        }
        bool again = core::is_transient(failure);
        if (again) again = co_await more.wait(failure);
        if (!again) fail(failure, what.doing);
    }
}

asio::awaitable<std::optional<std::uint64_t>> sandbox_side::make_room(json::object arguments) {
    const outcome said = co_await call_once(helper_call("sweep", json::serialize(arguments)));
    if (!said.answer) co_return std::nullopt;
    co_return parse_sweep(*said.answer);
}

asio::awaitable<void> sandbox_side::drop(std::vector<std::string> live) {
    const json::object arguments = drop_arguments(operation_, live);
    co_await call_once(helper_call("drop", json::serialize(arguments)));
}

asio::awaitable<void> sandbox_side::put_part(std::size_t number, int fd, std::uint64_t size,
                                             std::uint64_t& gone, std::vector<std::string> live) {
    upload what;
    what.send = [this, number, fd, size, &gone] {
        return account_.cloud().put_file(sandbox_id_, part_path(operation_, number), fd, 0, size,
                                         &gone);
    };
    what.size = size;
    what.sweep = drop_arguments(operation_, live);
    what.doing = "sending files to the sandbox";
    co_await insist(std::move(what));
}

asio::awaitable<void> sandbox_side::get_part(std::size_t number, int fd, std::uint64_t size,
                                             std::uint64_t& come) {
    patience more(executor_, account_);
    for (;;) {
        const auto got = account_.observe(co_await account_.cloud().get_content(
            sandbox_id_, part_path(operation_, number), fd, 0, size, &come));
        if (got.has_value() && *got == size) co_return;
        if (got.has_value()) {
            fail({error_name::sync_failed, "the sandbox sent a part of another size than it said"});
        }
        const cloud::failure failure = got.error();
        if (failure.kind == cloud::failure_kind::too_large) {
            fail({error_name::sync_failed, "the sandbox sent more than it said"});
        }
        bool again = core::is_transient(failure);
        if (again) again = co_await more.wait(failure);
        if (!again) fail(failure, "fetching files from the sandbox");
    }
}

asio::awaitable<void> sandbox_side::put_text(std::string path, std::string text,
                                             json::object sweep) {
    upload what;
    what.send = [this, &path, &text] {
        return account_.cloud().put_content(sandbox_id_, path, text);
    };
    what.size = text.size();
    what.sweep = std::move(sweep);
    what.doing = "sending a list of files";
    co_await insist(std::move(what));
}

asio::awaitable<void> sandbox_side::put_torn(std::size_t number, std::vector<std::size_t> members,
                                             std::vector<std::string> live) {
    co_await put_text(torn_path(operation_, number), torn_content(members),
                      drop_arguments(operation_, live));
}

asio::awaitable<std::string> sandbox_side::given(std::string path, json::object arguments) {
    std::string text = json::serialize(arguments);
    if (text.size() > longest_arguments) {
        const json::object sweep = {{"op", operation_}, {"live", arguments.at("live")}};
        co_await put_text(path, std::move(text), sweep);
        text = "@" + path;
    }
    co_return text;
}

asio::awaitable<std::optional<helper_error>> sandbox_side::attempt(std::string verb,
                                                                   json::object arguments) {
    std::string text = co_await given(arguments_path(operation_) + "-early", std::move(arguments));
    const std::vector<std::string> argv = helper_call(verb, std::move(text));
    const outcome said = co_await call_once(argv);
    std::optional<helper_error> error;
    if (said.answer) error = error_of(*said.answer);
    co_return error;
}

asio::awaitable<json::object> sandbox_side::call(std::string verb, json::object arguments) {
    std::string text = co_await given(arguments_path(operation_), std::move(arguments));
    patience more(executor_, account_);
    const std::vector<std::string> argv = helper_call(verb, std::move(text));
    for (;;) {
        outcome said = co_await call_once(argv);
        if (said.answer) {
            if (const auto error = error_of(*said.answer)) fail(*error);
            co_return std::move(*said.answer);
        }
        if (!said.failure) fail({error_name::sync_failed, said.broken});
        bool again = core::is_transient(*said.failure);
        if (again) again = co_await more.wait(*said.failure);
        if (!again) fail(*said.failure, "unpacking or packing files in the sandbox");
    }
}

asio::awaitable<sandbox_side::outcome>
sandbox_side::call_once(const std::vector<std::string>& argv) {
    using namespace asio::experimental::awaitable_operators;
    outcome result;
    auto sent = co_await account_.cloud().exec(sandbox_id_, argv, platform_cap);
    account_.observe(sent);
    if (!sent.has_value()) {
        result.failure = sent.error();
        co_return result;
    }
    const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    std::string out;
    std::string err;
    struct arrived { // as asio's operator|| would take the variant apart
        cloud::exec_event event;
    };
    const auto arrival = [&stream]() -> asio::awaitable<arrived> {
        arrived got;
        got.event = co_await stream->next();
        co_return got;
    };
    asio::steady_timer limit(executor_);
    for (;;) {
        limit.expires_after(silence);
        const auto first = co_await (arrival() || limit.async_wait(asio::use_awaitable));
        if (first.index() != 0) {
            result.failure = cloud::failure{cloud::failure_kind::interrupted, 0,
                                            "no sign of life from the sandbox", std::nullopt};
            co_return result;
        }
        const cloud::exec_event& event = std::get<0>(first).event;
        if (const auto* output = std::get_if<cloud::exec_output>(&event)) {
            (output->is_stderr ? err : out) += output->text;
            if (out.size() > most_output) {
                result.broken = "the sandbox answers with more than it should";
                co_return result;
            }
            if (err.size() > most_output) err.erase(0, err.size() / 2);
        } else if (const auto* exited = std::get_if<cloud::exec_exited>(&event)) {
            result.answer = parse_answer(out);
            if (!result.answer) {
                result.broken = "python3 in the sandbox ended with code " +
                                std::to_string(exited->returncode) + " and no answer";
                spdlog::warn("sandbox {}: {}: {}", sandbox_id_, result.broken,
                             err.substr(err.size() - std::min<std::size_t>(err.size(), 500)));
            }
            co_return result;
        } else if (const auto* refused = std::get_if<cloud::exec_refused>(&event)) {
            result.broken = "the sandbox could not run it: " + refused->message;
            co_return result;
        } else if (const auto* cut = std::get_if<cloud::exec_cut>(&event)) {
            result.failure = cut->why;
            co_return result;
        }
    }
}

} // namespace sandboxd::sync
