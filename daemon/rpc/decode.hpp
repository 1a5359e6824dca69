// From JSON to typed values: every complaint names the field, and a field nobody asked for is
// refused.
//
// All functions throw rpc_error invalid_params.
#pragma once

#include "core/sandbox_record.hpp"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sandboxd::rpc {

namespace json = boost::json;

// Reads an object field by field. finish() refuses what was not read.
class fields {
public:
    // `path`: of the object itself, for complaints; empty: the params.
    fields(const json::object& object, std::string path = {})
        : object_(object), path_(std::move(path)) {}

    // Lengths are in characters, as JSON Schema counts them.
    std::string text(std::string_view name, std::size_t least, std::size_t most);
    std::optional<std::string> optional_text(std::string_view name, std::size_t least,
                                             std::size_t most);
    bool flag(std::string_view name, bool otherwise);
    std::int64_t integer(std::string_view name, std::int64_t least, std::int64_t most);
    std::optional<std::int64_t> optional_integer(std::string_view name, std::int64_t least,
                                                 std::int64_t most);
    std::optional<double> optional_number(std::string_view name);
    std::optional<std::string> optional_bytes(std::string_view name); // a string or {"b64": ...}
    std::optional<std::vector<std::string>> optional_bytes_list(std::string_view name);
    std::vector<std::pair<std::string, std::string>> bytes_map(std::string_view name);
    core::sandbox_key key(std::string_view name);
    std::optional<core::sandbox_key> optional_key(std::string_view name);
    std::string exec_id();
    std::optional<std::uint64_t> generation();     // of a sandbox
    std::string sha256(std::string_view name);     // in hexadecimal digits; empty: there is none
    const json::value* raw(std::string_view name); // nothing if absent

    bool has(std::string_view name) const { return object_.contains(name); }
    void finish() const;

    [[noreturn]] void complain(std::string_view name, std::string_view what) const;

private:
    std::string bytes_of(const json::value& value, const std::string& where) const;
    core::sandbox_key key_of(const json::value& value, std::string_view name) const;

    const json::object& object_;
    std::string path_;
    std::set<std::string, std::less<>> seen_;
};

} // namespace sandboxd::rpc
