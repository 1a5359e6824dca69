// What is asked of helper.py, which runs inside a sandbox, and what it answers.
//
// Pure. Answers come from a place that untrusted code controls: whatever does not fit is
// `std::nullopt`, and every number in them is checked against what was asked.
#pragma once

#include <boost/json/object.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sync {

namespace json = boost::json;

// The text of one of the helper's files, by its name without ".py"; generated from them. Empty if
// there is none.
std::string_view helper_file(std::string_view name);

// The argument vector of one call; `arguments` as JSON text, or "@" and the path of a file in the
// sandbox that has it.
std::vector<std::string> helper_call(std::string_view verb, std::string arguments);
// Longer ones go into a file, since Linux takes no longer argument.
inline constexpr std::size_t longest_arguments = 96U << 10;

// What operations are called: what was drawn for the daemon's run, and which of its operations it
// is. The helper compares them, see Operation.sweep().
inline constexpr std::size_t run_bytes = 6; // two characters each
std::string name_operation(const std::string& run, std::uint32_t number);

// Where an operation keeps its things in the sandbox.
std::string part_path(const std::string& operation, std::size_t number);
std::string arguments_path(const std::string& operation);
// Of what is told with part `number`: the members that are not to be unpacked, as far as that is
// known by now. Before that part is sent.
std::string torn_path(const std::string& operation, std::size_t number);
std::string torn_content(const std::vector<std::size_t>& members);

// Bytes as a JSON string of one character each, and back (nothing if it is none).
json::string to_characters(std::string_view bytes);
std::optional<std::string> from_characters(std::string_view text);

struct unpack_order {
    std::optional<std::size_t> parts; // nothing: more are to come
    std::vector<std::string> ours;    // files and links of ours where there is to be a directory
    std::vector<std::string> claims;  // what else should be there
    std::string into; // the name a file gets in the directory that there is where it was to be
};
json::object unpack_arguments(const std::string& operation, const std::vector<std::string>& live,
                              const unpack_order& order);
// `known`: digests of content, by path, with which a file is left out.
json::object pack_arguments(const std::string& operation, const std::vector<std::string>& live,
                            const std::string& remote, std::uint64_t part_bytes, bool compress,
                            std::optional<std::uint64_t> max_bytes,
                            const std::map<std::string, std::string>& known);
// Of `drop` and `sweep`.
json::object drop_arguments(const std::string& operation, const std::vector<std::string>& live);
// Of `delete` and `look`.
json::object paths_arguments(const std::string& operation, const std::vector<std::string>& live,
                             const std::vector<std::string>& paths);

struct helper_failure {
    std::size_t index = 0; // of the member or path
    bool in_the_way = false;
    std::string text; // may be empty: only the first are explained
};
struct unpack_answer {
    std::vector<std::size_t> gone; // claims that are not true
    std::vector<helper_failure> failed;
    bool into = false; // there was such a directory
};
// Of one member in an archive that helper.py makes: two of the longest paths and the longest map of
// a sparse file are less than two thirds of it.
inline constexpr std::size_t longest_header = 64U << 10;
struct pack_answer {
    bool directory = false;
    std::uint64_t bytes = 0;    // of content
    std::uint64_t unpacked = 0; // of them what is not holes, as far as it was said
    std::uint64_t members = 0;
    std::vector<std::uint64_t> sizes; // of the parts
    std::vector<std::size_t> drop;    // members that are torn
    struct left_out {
        std::string remote;
        std::string reason;
        std::string text;
    };
    std::vector<left_out> skipped;
    std::uint64_t skipped_more = 0;
};
struct delete_answer {
    std::uint64_t deleted = 0;
    std::uint64_t missing = 0;
    std::vector<helper_failure> failed;
    bool by_link = false; // some may have had another name, too
};

// The `error` of an answer: "name" or "name: text".
struct helper_error {
    std::string name;
    std::string text;
};
std::optional<helper_error> error_of(const json::object& answer);

// The last line of what the helper printed.
std::optional<json::object> parse_answer(std::string_view output);
std::optional<unpack_answer> parse_unpack(const json::object& answer, std::size_t members,
                                          std::size_t claims);
// Which of the paths are not there.
std::optional<std::vector<std::size_t>> parse_look(const json::object& answer, std::size_t paths);
std::optional<std::uint64_t> parse_sweep(const json::object& answer); // bytes that are free
std::optional<pack_answer> parse_pack(const json::object& answer, std::uint64_t part_bytes);
std::optional<delete_answer> parse_delete(const json::object& answer, std::size_t paths);

} // namespace sandboxd::sync
