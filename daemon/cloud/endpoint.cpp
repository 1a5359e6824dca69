#include "cloud/endpoint.hpp"

#include <boost/asio/ip/address.hpp>
#include <boost/url/encode.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/rfc/unreserved_chars.hpp>
#include <boost/url/url.hpp>
#include <boost/url/url_view.hpp>

#include <algorithm>

namespace sandboxd::cloud {

namespace {

namespace urls = boost::urls;

// Letters of a host that is put into a header as it is; `:` only inside an IPv6 literal.
bool plain_host(std::string_view host, bool ipv6) {
    return !host.empty() && std::all_of(host.begin(), host.end(), [ipv6](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
               c == '_' || (ipv6 && c == ':');
    });
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    });
    return text;
}

std::string origin(const endpoint& at) {
    return (at.tls ? "https://" : "http://") + at.host_header;
}

} // namespace

bool is_ip_address(std::string_view address) {
    boost::system::error_code ec;
    boost::asio::ip::make_address(std::string(address), ec);
    return !ec;
}

bool is_loopback_address(std::string_view address) {
    boost::system::error_code ec;
    const auto parsed = boost::asio::ip::make_address(std::string(address), ec);
    if (ec) return false;
    if (parsed.is_v6() && parsed.to_v6().is_v4_mapped()) {
        return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, parsed.to_v6())
            .is_loopback();
    }
    return parsed.is_loopback();
}

boost::system::result<endpoint, std::string> parse_endpoint(std::string_view base_url) {
    const auto parsed = urls::parse_uri(urls::string_view(base_url.data(), base_url.size()));
    if (!parsed) {
        return std::string("the base URL is not a URL such as https://api.deepinfra.com");
    }
    const urls::url_view& url = *parsed;
    // Boost.URL 1.81 takes "127.0.0.1.example.com" for the address and a path without a slash.
    const auto authority_at = base_url.find("//");
    const std::string_view authority =
        authority_at == std::string_view::npos
            ? std::string_view()
            : base_url.substr(authority_at + 2,
                              base_url.find_first_of("/?#", authority_at + 2) - authority_at - 2);
    const bool whole_authority = authority == std::string_view(url.encoded_authority().data(),
                                                               url.encoded_authority().size());
    endpoint out;
    if (url.scheme_id() != urls::scheme::https && url.scheme_id() != urls::scheme::http) {
        return std::string(
            "the base URL must begin with https:// (http:// for loopback addresses only)");
    }
    out.tls = url.scheme_id() == urls::scheme::https;
    if (url.has_userinfo())
        return std::string("the base URL must not carry a user name or password");
    if (url.has_query() || url.has_fragment()) {
        return std::string("the base URL must not have a query or a fragment");
    }
    if (!whole_authority)
        return std::string(
            "the base URL's host or port is not one (for http://, loopback addresses only)");
    const bool ipv6 = url.host_type() == urls::host_type::ipv6;
    if (url.host_type() == urls::host_type::ipvfuture) {
        return std::string("the base URL's host is of an unknown kind");
    }
    const auto address = url.host_address();
    out.host = lower(std::string(address.data(), address.size()));
    if (!out.host.empty() && out.host.back() == '.') out.host.pop_back();
    if (!plain_host(out.host, ipv6))
        return std::string("the base URL's host is missing or not a host name");
    out.port = out.tls ? 443 : 80;
    if (url.has_port() && !url.port().empty()) {
        if (url.port_number() == 0)
            return std::string("the base URL's port is not between 1 and 65535");
        out.port = url.port_number();
    }
    if (!out.tls && out.host != "localhost" && !is_loopback_address(out.host)) {
        return std::string("the base URL must begin with https://: http:// would send the API key "
                           "in the open and is "
                           "allowed for loopback addresses only");
    }
    const auto path = url.encoded_path();
    out.prefix = std::string(path.data(), path.size());
    while (!out.prefix.empty() && out.prefix.back() == '/')
        out.prefix.pop_back();

    out.host_header = ipv6 ? "[" + out.host + "]" : out.host;
    if (out.port != (out.tls ? 443 : 80)) out.host_header += ":" + std::to_string(out.port);
    return out;
}

std::optional<std::string> encode_segment(std::string_view id) {
    if (id.empty() || id == "." || id == "..") return std::nullopt;
    return urls::encode(urls::string_view(id.data(), id.size()), urls::unreserved_chars);
}

std::string encode_query_value(std::string_view value) {
    return urls::encode(urls::string_view(value.data(), value.size()),
                        urls::unreserved_chars + '/');
}

std::optional<std::string> resolve_next(const endpoint& at, std::string_view current_target,
                                        std::string_view reference) {
    const std::string current = origin(at) + std::string(current_target);
    const auto base = urls::parse_uri(current);
    const auto next =
        urls::parse_uri_reference(urls::string_view(reference.data(), reference.size()));
    if (!base || !next || reference.empty()) return std::nullopt;
    urls::url whole;
    if (!urls::resolve(*base, *next, whole)) return std::nullopt;
    const auto shown = whole.encoded_origin();
    const auto elsewhere = parse_endpoint(std::string_view(shown.data(), shown.size()));
    if (!elsewhere || whole.has_userinfo() || elsewhere->tls != at.tls ||
        elsewhere->host != at.host || elsewhere->port != at.port) {
        return std::nullopt;
    }
    const auto target = whole.encoded_target();
    if (target.empty() || target.front() != '/') return std::nullopt;
    return std::string(target.data(), target.size());
}

} // namespace sandboxd::cloud
