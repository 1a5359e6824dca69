#include "rpc/connection.hpp"

#include "rpc/encode.hpp"
#include "rpc/methods.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <spdlog/spdlog.h>

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

namespace sandboxd::rpc {
namespace asio = boost::asio;

namespace {

constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds slow_request{10}; // worth a line in the log

// They wait for nothing, so none is refused for those that do: commands may wait for an exec.ack.
constexpr std::array<std::string_view, 7> answered_at_once{
    "hello",        "daemon.ping", "daemon.status", "daemon.health",
    "rpc.discover", "exec.ack",    "exec.list"};

bool is_answered_at_once(const std::string& method) {
    return std::find(answered_at_once.begin(), answered_at_once.end(), method) !=
           answered_at_once.end();
}

} // namespace

connection::connection(socket connected, sys::process_identity peer, services& parts)
    : socket_(std::move(connected)), peer_(peer), parts_(parts), written_(socket_.get_executor()),
      wanted_(socket_.get_executor()) {}

void connection::start() {
    ++parts_.connections;
    const auto self = shared_from_this();
    asio::co_spawn(
        socket_.get_executor(), [self] { return self->read(); }, asio::detached);
    asio::co_spawn(
        socket_.get_executor(), [self] { return self->write(); }, asio::detached);
}

void connection::close() {
    if (std::exchange(closed_, true)) {
        return;
    }
    boost::system::error_code ignored;
    socket_.close(ignored);
    answers_.clear();
    ready_.clear();
    for (const std::shared_ptr<exec::feed>& each : std::exchange(owned_, {})) {
        each->detach();
    }
    wanted_.notify_all();
    written_.notify_all();
}

void connection::close_soon(std::chrono::milliseconds patience) {
    draining_ = true;
    wanted_.notify_all();
    auto timer = std::make_shared<asio::steady_timer>(socket_.get_executor(), patience);
    timer->async_wait(
        [self = shared_from_this(), timer](boost::system::error_code) { self->close(); });
}

asio::awaitable<void> connection::read() {
    std::array<char, 64U << 10> buffer;
    while (!closed_ && !draining_) {
        if (pending_ >= max_pending) {
            co_await written_.wait();
            continue;
        }
        if (waiting_ >= max_waiting) { // some of them may only have had no turn yet
            co_await asio::post(socket_.get_executor(), asio::use_awaitable);
        }
        bool going_on = true;
        if (const std::optional<std::string_view> line = splitter_.next()) {
            going_on = take_line(*line);
        } else if (!splitter_.overflowed()) {
            const auto [error, size] =
                co_await socket_.async_read_some(asio::buffer(buffer), as_tuple);
            if (error == asio::error::eof) {
                finished_ = true; // it may have closed only its sending half and still read
                wanted_.notify_all();
                co_await until_gone();
                close();
                co_return;
            }
            if (error) {
                break;
            }
            splitter_.feed({buffer.data(), size});
        } else {
            answer(format_error(nullptr,
                                rpc_error(error_name::line_too_long,
                                          "a line is longer than " + std::to_string(max_line) +
                                              " bytes; nothing of it was done")));
            going_on = false;
        }
        if (!going_on) {
            close_soon(std::chrono::seconds(5)); // the client should still read why
            co_return;
        }
    }
    if (!draining_) {
        close();
    }
}

// A client that has closed both halves gets nothing any more. Writing would tell, but behind a
// closed window nothing is written: its command would stand still for ever.
asio::awaitable<void> connection::until_gone() {
    while (!closed_) {
        pollfd state{socket_.native_handle(), 0, 0};
        if (::poll(&state, 1, 0) > 0 && (state.revents & POLLHUP) != 0) {
            co_return;
        }
        // Told of a hang-up once, as it happens; one that is there already was found by the poll.
        co_await socket_.async_wait(socket::wait_error, as_tuple);
    }
}

bool connection::take_line(std::string_view line) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        return true;
    }
    ++parts_.requests;
    parts_.asked.notify_all();
    request_message request;
    try {
        request = parse_request(line);
    } catch (const malformed& problem) {
        answer(format_error(problem.id, problem.error));
        return !problem.fatal;
    }
    const bool waits = !is_answered_at_once(request.method);
    // Whoever has asked for too much can still end it.
    const std::size_t most = request.method == "exec.cancel" ? 2 * max_waiting : max_waiting;
    if (waits && waiting_ >= most) {
        if (request.answered) {
            answer(format_error(
                request.id, rpc_error(error_name::too_many_requests,
                                      std::to_string(waiting_) +
                                          " requests of this connection are unanswered; nothing "
                                          "of this one was done")));
        }
        return true;
    }
    ++in_flight_;
    waiting_ += waits ? 1 : 0;
    asio::co_spawn(
        socket_.get_executor(),
        [self = shared_from_this(), request = std::move(request)]() mutable {
            return self->run(std::move(request));
        },
        asio::detached);
    return true;
}

asio::awaitable<void> connection::run(request_message request) {
    const auto began = std::chrono::steady_clock::now();
    std::string line;
    try {
        const auto found = methods().find(request.method);
        if (request.method != "hello" && !greeted_) {
            throw rpc_error(error_name::hello_required,
                            "the first call on a connection is hello; nothing was done");
        }
        if (found == methods().end()) {
            throw rpc_error(error_name::method_not_found,
                            "there is no method '" + request.method + "'");
        }
        // Named, because GCC 12 destroys an aggregate made inside a co_await expression twice.
        call from{shared_from_this(), parts_};
        const json::value result =
            co_await found->second.run(std::move(from), std::move(request.params));
        greeted_ = true;
        line = format_result(request.id, result);
        if (line.size() > max_line) {
            throw rpc_error(error_name::internal_error,
                            "the answer would be longer than a line may be");
        }
    } catch (const rpc_error& error) {
        line = format_error(request.id, error);
    } catch (const boost::system::system_error& error) {
        if (error.code() == asio::error::operation_aborted) {
            line = format_error(request.id,
                                rpc_error(error_name::shutting_down, "the daemon is stopping"));
        } else {
            line = format_error(request.id, rpc_error(error_name::internal_error, error.what()));
        }
    } catch (const std::exception& error) {
        spdlog::error("{}: {}", request.method, error.what());
        line = format_error(request.id, rpc_error(error_name::internal_error, error.what()));
    }
    const auto took = std::chrono::steady_clock::now() - began;
    if (took >= slow_request) {
        spdlog::info("{} of {} took {} s", request.method, describe(peer_),
                     std::chrono::duration_cast<std::chrono::seconds>(took).count());
    }
    --in_flight_;
    waiting_ -= is_answered_at_once(request.method) ? 0 : 1;
    if (request.answered) {
        answer(std::move(line));
    }
    written_.notify_all();
    wanted_.notify_all();
}

bool connection::all_said() const {
    return in_flight_ == 0 && owned_.empty();
}

void connection::answer(std::string line) {
    if (closed_) {
        return;
    }
    pending_ += line.size();
    answers_.push_back(std::move(line));
    wanted_.notify_all();
}

void connection::own(const std::shared_ptr<exec::feed>& feed) {
    if (closed_) {
        feed->detach();
        return;
    }
    if (const std::shared_ptr<exec::session> of = feed->of()) {
        if (const std::shared_ptr<exec::feed> before = feed_of(of->id())) {
            std::erase(owned_, before);
            if (before != feed) {
                std::erase(ready_, before);
            }
        }
    }
    owned_.push_back(feed);
}

std::shared_ptr<exec::feed> connection::feed_of(const std::string& exec_id) const {
    const auto found = std::find_if(owned_.begin(), owned_.end(), [&](const auto& each) {
        const std::shared_ptr<exec::session> of = each->of();
        return of && of->id() == exec_id;
    });
    return found == owned_.end() ? nullptr : *found;
}

// Whoever asked for a command may say, once it was told its end, that it has got that.
void connection::note_told(const exec::feed& which, const std::string& exec_id) {
    if (!which.is_owners()) {
        return;
    }
    told_.push_back(exec_id);
    if (told_.size() > max_told) {
        told_.pop_front();
    }
}

bool connection::take_told(const std::string& exec_id) {
    return std::erase(told_, exec_id) > 0;
}

void connection::on_ready(const std::shared_ptr<exec::feed>& which) {
    if (closed_ || std::find(ready_.begin(), ready_.end(), which) != ready_.end()) {
        return;
    }
    ready_.push_back(which);
    wanted_.notify_all();
}

void connection::on_progress(const core::sandbox_key& key, const sandbox::progress& news) {
    answer(format_notification("sandbox.progress", encode_progress(key, news)));
}

void connection::mention(std::string_view method, json::object params) {
    if (pending_ < max_pending / 2) {
        answer(format_notification(method, std::move(params)));
    }
}

// Answers first, then one piece of each ready command in turn, up to about one batch.
void connection::fill(std::string& buffer) {
    while (!answers_.empty() && buffer.size() < batch) {
        pending_ -= answers_.front().size();
        buffer += answers_.front();
        answers_.pop_front();
    }
    while (!ready_.empty() && buffer.size() < batch) {
        const std::shared_ptr<exec::feed> next = std::move(ready_.front());
        ready_.pop_front();
        const std::shared_ptr<exec::session> of = next->of();
        if (!of) {
            continue;
        }
        if (const std::optional<core::output_chunk> chunk = next->take(piece)) {
            append_output(buffer, *of, *chunk, raw_output_);
            ready_.push_back(next);
        } else if (next->exit_due() && std::erase(owned_, next) > 0) {
            buffer += format_notification("exec.exit", encode_exit(*of, *next));
            note_told(*next, of->id());
            next->told();
        }
    }
}

asio::awaitable<void> connection::write() {
    std::string buffer;
    asio::steady_timer patience(socket_.get_executor());
    while (!closed_) {
        buffer.clear();
        fill(buffer);
        if (buffer.empty()) {
            if (draining_ || (finished_ && all_said())) {
                close();
                co_return;
            }
            co_await wanted_.wait();
            continue;
        }
        written_.notify_all();
        std::string_view rest = buffer;
        while (!rest.empty() && !closed_) {
            patience.expires_after(write_patience);
            patience.async_wait([self = shared_from_this()](boost::system::error_code error) {
                if (!error && !self->closed_) {
                    spdlog::warn("{} has read nothing for {} s: its connection is closed",
                                 describe(self->peer_), write_patience.count());
                    self->close();
                }
            });
            const auto [error, size] =
                co_await socket_.async_write_some(asio::buffer(rest), as_tuple);
            patience.cancel();
            if (error) {
                close();
                co_return;
            }
            rest.remove_prefix(size);
        }
    }
}

} // namespace sandboxd::rpc
