#include "cloud/error_body.hpp"

#include "base/utf8.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

namespace sandboxd::cloud {

namespace {

namespace json = boost::json;

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
}

std::optional<std::string> text_of(const json::value* value) {
    if (value == nullptr || !value->is_string() || value->get_string().empty()) return std::nullopt;
    const auto& text = value->get_string();
    return std::string(text.data(), text.size());
}

std::optional<std::string> text_in(const json::value* value, std::string_view name) {
    if (value == nullptr || !value->is_object()) return std::nullopt;
    return text_of(value->get_object().if_contains(name));
}

struct found_message {
    std::string text;
    bool is_api_shape = false; // one of the four shapes that the API itself uses
};

std::optional<found_message> message_of(std::string_view body) {
    json::error_code ec;
    const json::value root = json::parse(json::string_view(body.data(), body.size()), ec);
    if (ec || !root.is_object()) return std::nullopt;
    const json::object& object = root.get_object();
    const json::value* error = object.if_contains("error");
    const json::value* detail = object.if_contains("detail");
    if (auto text = text_of(error)) return found_message{*text, true};
    if (auto text = text_in(error, "message")) return found_message{*text, true};
    if (auto text = text_of(detail)) return found_message{*text, true};
    if (auto text = text_in(detail, "error")) return found_message{*text, true};
    if (auto text = text_in(detail, "message")) return found_message{*text, false};
    if (auto text = text_of(object.if_contains("message"))) return found_message{*text, false};
    if (detail != nullptr && detail->is_array()) {
        std::string joined;
        for (const json::value& item : detail->get_array()) {
            if (auto text = text_in(&item, "msg")) joined += (joined.empty() ? "" : "; ") + *text;
            if (joined.size() > max_message) break;
        }
        if (!joined.empty()) return found_message{joined, false};
    }
    return std::nullopt;
}

// A proxy may answer in a line of plain text; a page is of no use to people.
std::optional<std::string> plain_text(std::string_view body) {
    const auto first = body.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos || body.size() > 1024) return std::nullopt;
    if (body[first] == '<' || body[first] == '{' || body[first] == '[' || body[first] == '"')
        return std::nullopt;
    if (!is_utf8(body)) return std::nullopt;
    return std::string(body.substr(first));
}

bool speaks_of_the_cap(std::string_view message) {
    const std::string text = lower(message);
    const auto has = [&text](std::string_view word) {
        return text.find(word) != std::string::npos;
    };
    return has("active sandbox") || (has("sandbox") && (has("maximum") || has("quota")));
}

failure_kind kind_of(int status, const std::optional<found_message>& message) {
    switch (status) {
    case 401:
        return failure_kind::unauthorized;
    case 403:
        return failure_kind::forbidden;
    case 404:
        return message && message->is_api_shape ? failure_kind::not_found
                                                : failure_kind::not_found_unproven;
    case 409:
        return failure_kind::conflict;
    case 413:
        return failure_kind::too_large;
    case 429:
        return message && speaks_of_the_cap(message->text) ? failure_kind::cap_reached
                                                           : failure_kind::rate_limited;
    case 503:
        return failure_kind::no_capacity;
    default:
        break;
    }
    if (status >= 500 && status <= 599) return failure_kind::server_error;
    if (status >= 400 && status <= 499) return failure_kind::bad_request;
    return failure_kind::bad_answer;
}

std::string without_message(int status, std::string_view body) {
    std::string text = "HTTP " + std::to_string(status);
    if (status >= 300 && status <= 399) {
        return text + ": redirected elsewhere, which is not followed; is the base URL right?";
    }
    const auto first = body.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return text + " without a message";
    return text + (body[first] == '<' ? " with a page that is not the API's"
                                      : " with a body that is not the API's");
}

void mask(std::string& text, std::string_view word) {
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 3)) {
        text.replace(at, word.size(), "***");
    }
}

// "Bearer x" becomes "Bearer ***", whatever x is: it may be another account's key.
void mask_bearer(std::string& text) {
    static constexpr std::string_view scheme = "bearer ";
    std::string shadow = lower(text);
    for (std::size_t at = shadow.find(scheme); at != std::string::npos;
         at = shadow.find(scheme, at)) {
        at += scheme.size();
        std::size_t end = at;
        const auto in_token = [](char c) {
            return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                   std::string_view("-._~+/=").find(c) != std::string_view::npos;
        };
        while (end < text.size() && in_token(text[end]))
            ++end;
        // Short words are prose ("a bearer token").
        if (end - at >= 8) {
            text.replace(at, end - at, "***");
            shadow.replace(at, end - at, "***");
        }
    }
}

} // namespace

std::string clean_message(std::string_view raw, const secret& key) {
    // Cut only after masking, so that no half of a key is left at the edge.
    static constexpr std::size_t considered = 16 * max_message;
    std::string text(raw.substr(0, considered + key.reveal().size()));
    if (!key.empty()) mask(text, key.reveal());
    if (text.size() > considered) text.resize(considered);
    mask_bearer(text);
    std::string out;
    bool space = true; // none at the beginning
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte <= 0x20 || byte == 0x7f) {
            if (!space) out += ' ';
            space = true;
            continue;
        }
        out += c;
        space = false;
    }
    out = repair_utf8(out);
    if (out.size() > max_message) {
        out.resize(utf8_floor(out, max_message - 3));
        out += "...";
    }
    while (!out.empty() && out.back() == ' ')
        out.pop_back();
    return out;
}

failure failure_from_answer(int status, std::string_view body,
                            std::optional<std::chrono::seconds> retry_after, const secret& key) {
    const auto message = message_of(body);
    failure out;
    out.kind = kind_of(status, message);
    out.status = status;
    out.retry_after = retry_after;
    if (message) {
        out.message = clean_message(message->text, key);
    } else if (const auto text = plain_text(body); text && status >= 400) {
        out.message = clean_message(*text, key);
    }
    if (out.message.empty()) out.message = without_message(status, body);
    return out;
}

std::optional<std::chrono::system_clock::time_point> parse_http_date(std::string_view value) {
    // "Sun, 06 Nov 1994 08:49:37 GMT": fixed columns, so no locale and no strptime.
    if (value.size() != 29 || value.substr(3, 2) != ", " || value.substr(25) != " GMT")
        return std::nullopt;
    const auto number = [value](std::size_t at, std::size_t count) {
        int out = -1;
        const char* first = value.data() + at;
        const auto [end, ec] = std::from_chars(first, first + count, out);
        return ec == std::errc{} && end == first + count ? out : -1;
    };
    static constexpr std::string_view months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const auto month = months.find(value.substr(8, 3));
    const int day = number(5, 2);
    const int year = number(12, 4);
    const int hour = number(17, 2);
    const int minute = number(20, 2);
    const int second = number(23, 2);
    if (month == std::string_view::npos || month % 3 != 0 || day < 1 || year < 1970 || hour < 0 ||
        hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60) {
        return std::nullopt;
    }
    const std::chrono::year_month_day date{std::chrono::year(year),
                                           std::chrono::month(static_cast<unsigned>(month / 3 + 1)),
                                           std::chrono::day(static_cast<unsigned>(day))};
    if (!date.ok()) return std::nullopt;
    return std::chrono::sys_days(date) + std::chrono::hours(hour) + std::chrono::minutes(minute) +
           std::chrono::seconds(second);
}

std::optional<std::chrono::seconds> parse_retry_after(std::string_view value,
                                                      std::chrono::system_clock::time_point now) {
    using std::chrono::seconds;
    static constexpr seconds limit{3600};
    if (value.empty()) return std::nullopt;
    if (std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        std::int64_t count = 0;
        const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), count);
        return ec == std::errc{} ? std::min(seconds(count), limit) : limit; // too many digits
    }
    const auto when = parse_http_date(value);
    if (!when) return std::nullopt;
    return std::clamp(std::chrono::ceil<seconds>(*when - now), seconds(0), limit);
}

} // namespace sandboxd::cloud
