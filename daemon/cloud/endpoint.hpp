// Where the API is: the base URL taken apart and checked, and the targets of requests made from it.
//
// Pure. A base URL that must not be used is an error text for people; the text repeats neither the
// URL's user part nor anything else that could be a secret.
#pragma once

#include <boost/system/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::cloud {

struct endpoint {
    bool tls = true;
    std::string host; // lower case, without brackets and final dot
    std::uint16_t port = 443;
    std::string prefix; // "" or "/path", percent-encoded, without a final slash
    std::string
        host_header; // the Host field: brackets for IPv6, port unless it is the scheme's own

    friend bool operator==(const endpoint&, const endpoint&) = default;
};

// `https://host[:port][/prefix]`; `http://` for 127.0.0.0/8, [::1] and `localhost` only, because
// the key would travel in the open. A user part, a query and a fragment are refused.
boost::system::result<endpoint, std::string> parse_endpoint(std::string_view base_url);

// Whether `address` (no brackets) is 127.0.0.0/8, ::1 or one of the former mapped into IPv6.
bool is_loopback_address(std::string_view address);
bool is_ip_address(std::string_view address);

// `id` percent-encoded as one path segment (S). Nothing if no server could tell it from another
// path: empty, "." or "..".
std::optional<std::string> encode_segment(std::string_view id);
// A value of a query parameter; slashes stay readable.
std::string encode_query_value(std::string_view value);

// The target (path and query) of the next page that a server names in a Link header or a `next`
// field, relative to `current_target`. Nothing if it leads to another origin, where the key must
// not go, or cannot be read.
std::optional<std::string> resolve_next(const endpoint& at, std::string_view current_target,
                                        std::string_view reference);

} // namespace sandboxd::cloud
