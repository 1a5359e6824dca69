// How a request to the cloud can end other than well: a value, not an exception, because the pure
// state machines in core/ decide by it.
#pragma once

#include <boost/system/result.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace sandboxd::cloud {

enum class failure_kind {
    unreachable,  // nothing of the request was sent: name look-up, connect or TLS handshake failed
                  // or timed out
    interrupted,  // the connection was lost or timed out after (part of) the request may have been
                  // sent
    unauthorized, // 401
    forbidden,    // 403
    not_found,    // 404 with one of the API's own JSON error bodies
    not_found_unproven, // 404 with any other body (a proxy's page): says nothing about the sandbox
    conflict,           // 409: wrong state; for an exec, the command did not start
    too_large,          // 413
    bad_request,        // 400, 422 and other 4xx
    cap_reached,        // 429 whose text says that the account's cap of active sandboxes is reached
    rate_limited,       // any other 429
    no_capacity,        // 503
    server_error,       // other 5xx
    bad_answer, // an answer that is not what the API promises (malformed, oversized, wrong type)
};

struct failure {
    failure_kind kind{};
    int status = 0; // HTTP status, 0 if no status line came
    std::string
        message; // the API's own message if there was one, for people; never a header or a key
    // From `Retry-After` (seconds or HTTP date), at most one hour.
    std::optional<std::chrono::milliseconds> retry_after;
    // Not the platform's answer to this request but to an earlier one: while the platform wants
    // patience, nothing is sent.
    bool withheld = false;

    // Whether the request may have taken effect: true for interrupted, bad_answer and every 5xx.
    bool effect_unknown() const noexcept {
        return !withheld &&
               (kind == failure_kind::interrupted || kind == failure_kind::bad_answer ||
                kind == failure_kind::no_capacity || kind == failure_kind::server_error);
    }
};

template <class T>
using result = boost::system::result<T, failure>;

} // namespace sandboxd::cloud
