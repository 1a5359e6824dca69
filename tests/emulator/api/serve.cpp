// See serve.hpp.
#include "api/serve.hpp"

#include <boost/asio/steady_timer.hpp>
#include <boost/json.hpp>

#include <iostream>

namespace asio = boost::asio;

namespace emulator::api {

namespace {

constexpr std::uint64_t most_drained = 1024 * 1024;
constexpr std::size_t peeked_body = 64 * 1024; // for a fault that asks for it
constexpr std::string_view bearer = "Bearer ";

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    return out;
}

std::optional<int> account_of(const world& all, std::string_view authorization) {
    if (!authorization.starts_with(bearer)) return std::nullopt;
    const auto found = all.accounts.find(std::string(authorization.substr(bearer.size())));
    return found == all.accounts.end() ? std::nullopt : std::optional<int>(found->second);
}

// What is left of the request's body is in the way of the next request.
task<bool> drain_body(http::connection& connection) {
    char waste[16384];
    std::uint64_t total = 0;
    while (!connection.body_done()) {
        const std::size_t got = co_await connection.read_body(waste, sizeof waste);
        total += got;
        if (total > most_drained) co_return false;
    }
    co_return true;
}

class request_server {
public:
    request_server(world& all, http::connection& connection, bool last_on_connection)
        : all_(all), connection_(connection), last_(last_on_connection) {}

    // True: the connection can serve another request.
    task<bool> serve(bool control_only);

private:
    void record_head();
    task<void> handle(call& c);
    task<void> reply_error(http::responder& answer, const cloud::api_error& error);
    task<bool> serve_api();
    task<void> run_handler(call& c);
    task<void> play_status_fault(http::responder& answer, int status);

    world& all_;
    http::connection& connection_;
    bool last_;
    target where_;
    std::shared_ptr<request_record> record_;
    std::optional<int> account_;
    fault_action fault_;
};

void request_server::record_head() {
    record_->method = std::string(connection_.head().method_string());
    record_->target = std::string(connection_.head().target());
    record_->route = where_.pattern;
    record_->sandbox_id = where_.sandbox_id;
    for (const auto& field : connection_.head()) {
        const auto name = lower(field.name_string());
        if (name == "authorization")
            account_ = account_of(all_, field.value());
        else
            record_->headers.emplace_back(name, std::string(field.value()));
    }
    record_->authorized = account_.has_value();
}

task<void> request_server::reply_error(http::responder& answer, const cloud::api_error& error) {
    if (!connection_.body_done() && (connection_.client_waits_for_continue() ||
                                     connection_.content_length().value_or(0) > most_drained))
        answer.close_after();
    error_body shown{"application/json", error.body};
    if (error.body.empty()) shown = shape_error(all_.settings, error.status, error.message);
    http::header_list headers;
    if ((error.status == 429 || error.status == 503) && !all_.settings.retry_after.empty())
        headers.emplace_back("Retry-After", all_.settings.retry_after);
    co_await answer.reply(error.status, shown.content_type, shown.text, headers);
}

task<void> request_server::play_status_fault(http::responder& answer, int status) {
    std::string type;
    http::header_list headers;
    for (const auto& header : fault_.headers) {
        if (lower(header.first) == "content-type")
            type = header.second;
        else
            headers.push_back(header);
    }
    if (type.empty()) type = fault_.body.starts_with('<') ? "text/html" : "application/json";
    if (!connection_.client_waits_for_continue())
        co_await drain_body(connection_);
    else
        answer.close_after();
    co_await answer.reply(status, type, fault_.body, headers);
}

task<void> request_server::handle(call& c) {
    if (where_.to == route::control) {
        co_await serve_control(c);
        co_return;
    }
    if (!account_) throw cloud::api_error{401, "Invalid API key"};
    switch (where_.to) {
    case route::unknown:
        throw cloud::api_error{404, "Not Found"};
    case route::wrong_method:
        throw cloud::api_error{405, "Method Not Allowed"};
    case route::exec:
        co_await serve_exec(c);
        break;
    case route::put_file:
        co_await serve_put_file(c);
        break;
    case route::get_file:
        co_await serve_get_file(c);
        break;
    default:
        co_await serve_sandboxes(c);
    }
}

task<void> request_server::run_handler(call& c) {
    std::optional<cloud::api_error> refused;
    bool lost = false;
    try {
        co_await handle(c);
    } catch (const cloud::api_error& error) {
        refused = error;
    } catch (const http::answer_lost&) {
        lost = true;
    }
    if (refused && c.answer.begun()) { // nothing sensible can be said any more
        connection_.abort(false);
        throw http::connection_lost();
    }
    if (refused) {
        try {
            co_await reply_error(c.answer, *refused);
        } catch (const http::answer_lost&) {
            lost = true;
        }
    }
    if (!lost) co_return;
    if (fault_.act_then_status) {
        c.answer.stop_losing();
        co_await play_status_fault(c.answer, *fault_.act_then_status);
    } else {
        connection_.abort(fault_.reset);
        throw http::connection_lost();
    }
}

task<bool> request_server::serve_api() {
    http::responder answer(connection_, *record_, fault_, connection_.head().keep_alive() && !last_,
                           all_.settings.send_date
                               ? std::optional<std::int64_t>(all_.settings.date_offset_s)
                               : std::nullopt);
    call c{all_, connection_, answer, *record_, where_, account_.value_or(-1)};
    std::string outcome = "done";
    bool alive = false;
    try {
        co_await sleep_ms(all_.executor,
                          fault_.latency_ms +
                              (where_.to == route::control ? 0 : all_.settings.latency_ms));
        if (fault_.drop_before) {
            connection_.abort(fault_.reset);
            throw http::connection_lost();
        }
        if (fault_.stall_before) {
            while (!connection_.gone())
                co_await sleep_ms(all_.executor, 5);
            throw http::connection_lost();
        }
        if (fault_.status)
            co_await play_status_fault(answer, *fault_.status);
        else
            co_await run_handler(c);
        alive = answer.keep_alive();
        if (alive && connection_.client_waits_for_continue()) alive = false;
        if (alive) alive = co_await drain_body(connection_);
    } catch (const http::connection_lost&) {
        outcome = answer.by_fault() || fault_.drop_before || !fault_.act_then_drop.empty()
                      ? "fault"
                      : "client_gone";
    } catch (const http::not_http&) {
        outcome = "not_http";
    }
    if (where_.to != route::control) all_.records.end_request(*record_, outcome);
    co_return alive;
}

task<bool> request_server::serve(bool control_only) {
    where_ = resolve(connection_.head().method_string(), connection_.head().target());
    if (where_.to == route::control) {
        record_ = std::make_shared<request_record>();
        record_head();
    } else {
        if (control_only) where_.to = route::unknown;
        record_ = all_.records.begin_request(connection_.number());
        record_head();
        all_.records.count(*record_);
        std::string_view body;
        if (all_.faults.wants_body()) body = co_await connection_.peek_body(peeked_body);
        if (auto ordered =
                all_.faults.take(record_->method, record_->route, record_->sandbox_id, body))
            fault_ = std::move(*ordered);
    }
    co_return co_await serve_api();
}

} // namespace

task<void> serve_connection(world& all, std::shared_ptr<http::connection> connection,
                            bool control_only) {
    asio::steady_timer idle(all.executor);
    bool alive = co_await connection->opened();
    std::int64_t served = 0;
    bool broken = false;
    while (alive) {
        connection->busy = false;
        if (all.settings.keep_alive_idle_ms > 0 && !control_only) {
            idle.expires_after(std::chrono::milliseconds(all.settings.keep_alive_idle_ms));
            idle.async_wait([connection](boost::system::error_code ec) {
                if (!ec && !connection->busy) connection->abort(false);
            });
        }
        try {
            alive = co_await connection->read_head();
        } catch (const http::not_http&) {
            broken = true;
        }
        idle.cancel();
        if (broken || !alive) break;
        connection->busy = true;
        const bool last = !control_only && all.settings.keep_alive_requests > 0 &&
                          ++served >= all.settings.keep_alive_requests;
        request_server server(all, *connection, last);
        alive = co_await server.serve(control_only);
    }
    if (broken) {
        try {
            co_await connection->write(
                "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        } catch (const http::connection_lost&) {
        }
    }
    co_await connection->finish();
}

} // namespace emulator::api
