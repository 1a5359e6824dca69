#include "rpc/decode.hpp"

#include "base/base64.hpp"
#include "base/error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sandboxd::rpc {
namespace {

std::size_t characters(std::string_view utf8) {
    return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }));
}

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
    throw rpc_error(error_name::invalid_params,
                    "'" + where + "' " + std::string(what) + "; nothing was done");
}

} // namespace

void fields::complain(std::string_view name, std::string_view what) const {
    refuse(path_.empty() ? std::string(name) : path_ + "." + std::string(name), what);
}

const json::value* fields::raw(std::string_view name) {
    seen_.emplace(name);
    return object_.if_contains(name);
}

std::optional<std::string> fields::optional_text(std::string_view name, std::size_t least,
                                                 std::size_t most) {
    const json::value* value = raw(name);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (!value->is_string()) {
        complain(name, "is not a string");
    }
    std::string text(value->as_string());
    if (const std::size_t length = characters(text); length < least || length > most) {
        complain(name, "has " + std::to_string(length) + " characters, not " +
                           std::to_string(least) + " to " + std::to_string(most));
    }
    return text;
}

std::string fields::text(std::string_view name, std::size_t least, std::size_t most) {
    std::optional<std::string> value = optional_text(name, least, most);
    if (!value) {
        complain(name, "is missing");
    }
    return std::move(*value);
}

bool fields::flag(std::string_view name, bool otherwise) {
    const json::value* value = raw(name);
    if (value == nullptr) {
        return otherwise;
    }
    if (!value->is_bool()) {
        complain(name, "is neither true nor false");
    }
    return value->as_bool();
}

std::optional<std::int64_t> fields::optional_integer(std::string_view name, std::int64_t least,
                                                     std::int64_t most) {
    const json::value* value = raw(name);
    if (value == nullptr) {
        return std::nullopt;
    }
    boost::system::error_code error;
    const auto number =
        value->to_number<std::int64_t>(error); // takes 1.0 for 1, as JSON Schema does
    if (error) {
        complain(name, "is not an integer");
    }
    if (number < least || number > most) {
        complain(name, "is not between " + std::to_string(least) + " and " + std::to_string(most));
    }
    return number;
}

std::int64_t fields::integer(std::string_view name, std::int64_t least, std::int64_t most) {
    const std::optional<std::int64_t> value = optional_integer(name, least, most);
    if (!value) {
        complain(name, "is missing");
    }
    return *value;
}

std::optional<double> fields::optional_number(std::string_view name) {
    const json::value* value = raw(name);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (!value->is_number()) {
        complain(name, "is not a number");
    }
    return value->to_number<double>();
}

std::string fields::bytes_of(const json::value& value, const std::string& where) const {
    if (value.is_string()) {
        return std::string(value.as_string());
    }
    if (value.is_object() && value.as_object().size() == 1) {
        const json::value* encoded = value.as_object().if_contains("b64");
        if (encoded != nullptr && encoded->is_string()) {
            if (std::optional<std::string> bytes = base64_decode(encoded->as_string())) {
                return std::move(*bytes);
            }
            refuse(where + ".b64", "is not base64");
        }
    }
    refuse(where, "is neither a string nor {\"b64\": \"...\"}");
}

std::optional<std::string> fields::optional_bytes(std::string_view name) {
    const json::value* value = raw(name);
    if (value == nullptr) {
        return std::nullopt;
    }
    return bytes_of(*value, std::string(name));
}

std::optional<std::vector<std::string>> fields::optional_bytes_list(std::string_view name) {
    const json::value* value = raw(name);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (!value->is_array() || value->as_array().empty()) {
        complain(name, "is not a list of at least one");
    }
    std::vector<std::string> list;
    for (const json::value& each : value->as_array()) {
        list.push_back(bytes_of(each, std::string(name) + "[" + std::to_string(list.size()) + "]"));
    }
    return list;
}

std::vector<std::pair<std::string, std::string>> fields::bytes_map(std::string_view name) {
    std::vector<std::pair<std::string, std::string>> map;
    const json::value* value = raw(name);
    if (value == nullptr) {
        return map;
    }
    if (!value->is_object()) {
        complain(name, "is not an object");
    }
    for (const auto& [variable, content] : value->as_object()) {
        map.emplace_back(variable,
                         bytes_of(content, std::string(name) + "." + std::string(variable)));
    }
    return map;
}

core::sandbox_key fields::key_of(const json::value& value, std::string_view name) const {
    if (!value.is_object()) {
        complain(name, "is not an object");
    }
    fields parts(value.as_object(), std::string(name));
    core::sandbox_key key{parts.text("profile", 1, 1024), parts.text("task", 1, 1024)};
    parts.finish();
    return key;
}

core::sandbox_key fields::key(std::string_view name) {
    const json::value* value = raw(name);
    if (value == nullptr) {
        complain(name, "is missing");
    }
    return key_of(*value, name);
}

std::optional<core::sandbox_key> fields::optional_key(std::string_view name) {
    const json::value* value = raw(name);
    return value == nullptr ? std::nullopt : std::optional(key_of(*value, name));
}

std::string fields::exec_id() {
    std::string id = text("exec_id", 1, 128);
    const auto alphanumeric = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    };
    const bool fine = alphanumeric(id.front()) && std::all_of(id.begin(), id.end(), [&](char c) {
                          return alphanumeric(c) || c == '.' || c == '_' || c == '-';
                      });
    if (!fine) {
        complain("exec_id",
                 "is not made of letters, digits, '.', '_' and '-', the first a letter or digit");
    }
    return id;
}

std::optional<std::uint64_t> fields::generation() {
    const std::optional<std::int64_t> number =
        optional_integer("generation", 1, std::numeric_limits<std::int64_t>::max());
    return number ? std::optional(static_cast<std::uint64_t>(*number)) : std::nullopt;
}

std::string fields::sha256(std::string_view name) {
    const std::string sum = optional_text(name, 64, 64).value_or("");
    if (sum.find_first_not_of("0123456789abcdef") != std::string::npos) {
        complain(name, "is not a SHA-256 in small hexadecimal digits");
    }
    return sum;
}

void fields::finish() const {
    for (const auto& [name, value] : object_) {
        if (!seen_.contains(std::string_view(name))) {
            complain(name, "is not known to this daemon");
        }
    }
}

} // namespace sandboxd::rpc
