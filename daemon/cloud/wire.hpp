// The JSON of requests and answers (S: official SDK).
//
// Pure. Answers are read tolerantly: unknown fields are ignored, missing ones keep their defaults;
// only what nothing can be done without (an id, the list itself) makes an answer bad. Requests need
// valid UTF-8, which the caller guarantees.
#pragma once

#include "cloud/failure.hpp"
#include "cloud/model.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::cloud {

std::string create_body(const create_request& request);
std::string exec_body(const std::vector<std::string>& argv, std::chrono::seconds timeout);

sandbox_state parse_state(std::string_view name) noexcept;

// All of these fail as bad_answer (status 200).
result<sandbox_info> parse_sandbox(std::string_view body);
result<std::string> parse_created(std::string_view body); // the id
result<std::vector<plan_info>> parse_catalog(std::string_view body);
// An answer that says nothing but that it went well: an object or no body at all, but not a
// portal's page.
result<void> parse_nothing(std::string_view body);

// How a listing goes on. Pagination is unknown (?): the API is known to send one plain array (S).
struct next_page {
    enum class kind { none, reference, cursor };
    kind what = kind::none;
    std::string value;     // a reference to resolve against the page's own URL, or a cursor
    std::string parameter; // the query parameter that takes the cursor
};
struct sandbox_page {
    std::vector<sandbox_info> sandboxes;
    next_page next;
    std::int64_t total = -1; // how many there are on all pages, if the answer says so
};
// `link`: the values of the answer's Link fields, joined by commas; may be empty. A page that says
// that there is more but not how to get it is a bad answer: a listing that is read only in part
// would make sandboxes look gone.
result<sandbox_page> parse_sandbox_page(std::string_view body, std::string_view link);

// The target of `rel="next"` in a Link field (RFC 8288), empty if there is none.
std::string next_link(std::string_view link);

} // namespace sandboxd::cloud
