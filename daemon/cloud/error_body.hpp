// From an answer that is not a success to a `failure`: every shape that error bodies come in.
//
// Pure. What comes out is for people and may be logged: control characters are gone, the length is
// bounded, and the API key and anything that looks like an Authorization header are masked even if
// the body echoed them.
#pragma once

#include "base/secret.hpp"
#include "cloud/failure.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::cloud {

// The most bytes of a message that are kept.
inline constexpr std::size_t max_message = 600;

// `body` may be cut short or of any kind: JSON `{"error":"m"}`, `{"error":{"message":"m"}}`,
// `{"detail":"m"}`,
// `{"detail":{"error":"m"}}` (S: the API's own, which alone prove a 404), validation errors
// `{"detail":[{"msg":"m"}]}` and `{"message":"m"}`, plain text, or a proxy's HTML page (?).
// `status` is not 2xx.
failure failure_from_answer(int status, std::string_view body,
                            std::optional<std::chrono::seconds> retry_after, const secret& key);

// The value of `Retry-After`: seconds, or an HTTP date seen from `now` (the answer's own Date,
// where it has one, so that clocks need not agree). Between 0 s and one hour; nothing if it cannot
// be read.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view value,
                                                      std::chrono::system_clock::time_point now);
// An IMF-fixdate such as "Sun, 06 Nov 1994 08:49:37 GMT".
std::optional<std::chrono::system_clock::time_point> parse_http_date(std::string_view value);

// `text` made fit for people as described above. `key` may be empty.
std::string clean_message(std::string_view text, const secret& key);

} // namespace sandboxd::cloud
