#include "sync/helper.hpp"

#include "base/utf8.hpp"
#include "sync/path.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace sandboxd::sync {
namespace {

constexpr std::size_t most_parts = 100'000;
constexpr std::size_t longest_text = 300; // characters, of what is shown to people
// No sandbox has a disk of that size; sums stay far from overflowing.
constexpr std::uint64_t largest = std::uint64_t(1) << 50;

std::string operation_path(const std::string& operation) {
    return std::string(own_directory) + "/sync/" + operation;
}

std::string numbered(const std::string& operation, const char* what, std::size_t number) {
    char name[48];
    std::snprintf(name, sizeof name, "/%s-%06zu", what, number);
    return operation_path(operation) + name;
}

json::array names(const std::vector<std::string>& list) {
    json::array out;
    for (const std::string& each : list)
        out.push_back(to_characters(each));
    return out;
}

const json::array* list_of(const json::object& from, std::string_view name) {
    const json::value* found = from.if_contains(name);
    return found == nullptr ? nullptr : found->if_array();
}

std::optional<std::uint64_t> number_from(const json::value* value) {
    if (value == nullptr) return std::nullopt;
    boost::system::error_code error;
    const auto number = value->to_number<std::uint64_t>(error);
    if (error || number > largest) return std::nullopt;
    return number;
}

std::optional<std::uint64_t> number_of(const json::object& from, std::string_view name) {
    return number_from(from.if_contains(name));
}

// For people and logs: untrusted, so short and without control characters.
std::string text_from(const json::value& value) {
    if (!value.is_string()) return {};
    std::string text(value.as_string());
    text.resize(utf8_floor(text, longest_text));
    std::replace_if(
        text.begin(), text.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
    return text;
}

// A list of numbers below `limit`.
bool take_indices(const json::object& from, std::string_view name, std::size_t limit,
                  std::vector<std::size_t>& into) {
    const json::array* list = list_of(from, name);
    if (list == nullptr || list->size() > limit) return false;
    for (const json::value& each : *list) {
        const auto index = number_from(&each);
        if (!index || *index >= limit) return false;
        into.push_back(static_cast<std::size_t>(*index));
    }
    return true;
}

bool take_failures(const json::object& from, std::size_t limit, std::vector<helper_failure>& into) {
    const json::array* list = list_of(from, "failed");
    if (list == nullptr || list->size() > limit) return false;
    for (const json::value& each : *list) {
        const json::array* fields = each.if_array();
        if (fields == nullptr || fields->size() != 3) return false;
        const auto index = number_from(&fields->at(0));
        if (!index || *index >= limit) return false;
        into.push_back({static_cast<std::size_t>(*index), text_from(fields->at(1)) == "in_the_way",
                        text_from(fields->at(2))});
    }
    return true;
}

// Of so much content, compressed for nothing at the worst.
std::uint64_t longest_archive(std::uint64_t bytes, std::uint64_t members) {
    constexpr std::uint64_t slack = 1U << 20;
    const std::uint64_t headers = std::min(members, largest / longest_header) * longest_header;
    return bytes + bytes / 64 + headers + slack;
}

} // namespace

std::vector<std::string> helper_call(std::string_view verb, std::string arguments) {
    std::string source;
    for (const std::string_view text :
         {helper_file("helper"), helper_file("helper_remove"),
          helper_file(verb == "unpack" ? "helper_parts" : ""),
          helper_file("helper_" + std::string(verb)), std::string_view("main()\n")}) {
        source += text;
        source += '\n';
    }
    // -I and -S: nothing of the sandbox's own modules or settings is loaded.
    return {"python3",           "-I", "-S", "-c", std::move(source), std::string(verb),
            std::move(arguments)};
}

std::string name_operation(const std::string& run, std::uint32_t number) {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%08x", static_cast<unsigned>(number));
    return run + digits;
}

std::string part_path(const std::string& operation, std::size_t number) {
    return numbered(operation, "part", number);
}

std::string arguments_path(const std::string& operation) {
    return operation_path(operation) + "/arguments";
}

std::string torn_path(const std::string& operation, std::size_t number) {
    return numbered(operation, "torn", number);
}

std::string torn_content(const std::vector<std::size_t>& members) {
    return json::serialize(json::array(members.begin(), members.end()));
}

json::string to_characters(std::string_view bytes) {
    json::string out;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x80) {
            out.push_back(c);
        } else {
            out.push_back(static_cast<char>(0xC0 | (byte >> 6)));
            out.push_back(static_cast<char>(0x80 | (byte & 0x3F)));
        }
    }
    return out;
}

std::optional<std::string> from_characters(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte < 0x80) {
            out += text[i];
        } else if ((byte == 0xC2 || byte == 0xC3) && i + 1 < text.size()) {
            out += static_cast<char>(((byte & 3) << 6) |
                                     (static_cast<unsigned char>(text[++i]) & 0x3F));
        } else {
            return std::nullopt;
        }
    }
    return out;
}

json::object unpack_arguments(const std::string& operation, const std::vector<std::string>& live,
                              const unpack_order& order) {
    return {{"op", operation},
            {"live", names(live)},
            {"parts", order.parts ? json::value(*order.parts) : json::value(nullptr)},
            {"ours", names(order.ours)},
            {"claims", names(order.claims)},
            {"into", to_characters(order.into)}};
}

json::object pack_arguments(const std::string& operation, const std::vector<std::string>& live,
                            const std::string& remote, std::uint64_t part_bytes, bool compress,
                            std::optional<std::uint64_t> max_bytes,
                            const std::map<std::string, std::string>& known) {
    json::object digests;
    for (const auto& [path, digest] : known)
        digests[to_characters(path)] = digest;
    return {{"op", operation},
            {"live", names(live)},
            {"remote", to_characters(remote)},
            {"part_bytes", part_bytes},
            {"compress", compress},
            {"max_bytes", max_bytes ? json::value(*max_bytes) : json::value(nullptr)},
            {"known", std::move(digests)}};
}

json::object drop_arguments(const std::string& operation, const std::vector<std::string>& live) {
    return {{"op", operation}, {"live", names(live)}};
}

json::object paths_arguments(const std::string& operation, const std::vector<std::string>& live,
                             const std::vector<std::string>& paths) {
    return {{"op", operation}, {"live", names(live)}, {"paths", names(paths)}};
}

std::optional<helper_error> error_of(const json::object& answer) {
    const json::value* error = answer.if_contains("error");
    if (error == nullptr) return std::nullopt;
    const std::string text = text_from(*error);
    const std::size_t colon = text.find(": ");
    if (colon == std::string::npos) return helper_error{text, {}};
    return helper_error{text.substr(0, colon), text.substr(colon + 2)};
}

std::optional<json::object> parse_answer(std::string_view output) {
    while (output.ends_with('\n'))
        output.remove_suffix(1);
    output = output.substr(output.rfind('\n') + 1); // npos + 1 is 0
    boost::system::error_code error;
    json::value value = json::parse({output.data(), output.size()}, error);
    if (error || !value.is_object()) return std::nullopt;
    return std::move(value.as_object());
}

std::optional<unpack_answer> parse_unpack(const json::object& answer, std::size_t members,
                                          std::size_t claims) {
    unpack_answer out;
    if (!take_indices(answer, "gone", claims, out.gone)) return std::nullopt;
    if (!take_failures(answer, members, out.failed)) return std::nullopt;
    const json::value* into = answer.if_contains("into");
    out.into = into != nullptr && into->is_bool() && into->get_bool();
    return out;
}

std::optional<std::vector<std::size_t>> parse_look(const json::object& answer, std::size_t paths) {
    std::vector<std::size_t> gone;
    if (!take_indices(answer, "gone", paths, gone)) return std::nullopt;
    return gone;
}

std::optional<std::uint64_t> parse_sweep(const json::object& answer) {
    return number_of(answer, "free");
}

std::optional<pack_answer> parse_pack(const json::object& answer, std::uint64_t part_bytes) {
    pack_answer out;
    const json::value* kind = answer.if_contains("kind");
    const auto bytes = number_of(answer, "bytes");
    const auto members = number_of(answer, "members");
    const auto more = number_of(answer, "skipped_more");
    const json::array* sizes = list_of(answer, "sizes");
    const json::array* skipped = list_of(answer, "skipped");
    if (kind == nullptr || !bytes || !members || !more || sizes == nullptr || skipped == nullptr ||
        sizes->empty() || sizes->size() > most_parts) {
        return std::nullopt;
    }
    out.directory = *kind == "directory";
    out.bytes = *bytes;
    out.unpacked = number_of(answer, "unpacked").value_or(0);
    out.members = *members;
    out.skipped_more = *more;
    std::uint64_t all = 0;
    for (const json::value& each : *sizes) {
        const auto size = number_from(&each);
        if (!size || *size == 0 || *size > part_bytes) return std::nullopt;
        out.sizes.push_back(*size);
        all += *size;
    }
    if (all > longest_archive(*bytes, *members)) return std::nullopt;
    if (!take_indices(answer, "drop", out.members, out.drop)) return std::nullopt;
    for (const json::value& each : *skipped) {
        const json::array* fields = each.if_array();
        if (fields == nullptr || fields->size() != 3 || !fields->at(0).is_string()) {
            return std::nullopt;
        }
        std::optional<std::string> remote = from_characters(fields->at(0).as_string());
        if (!remote) return std::nullopt;
        out.skipped.push_back(
            {std::move(*remote), text_from(fields->at(1)), text_from(fields->at(2))});
    }
    return out;
}

std::optional<delete_answer> parse_delete(const json::object& answer, std::size_t paths) {
    delete_answer out;
    const auto deleted = number_of(answer, "deleted");
    const auto missing = number_of(answer, "missing");
    if (!deleted || !missing || !take_failures(answer, paths, out.failed)) return std::nullopt;
    out.deleted = *deleted;
    out.missing = *missing;
    const json::value* by_link = answer.if_contains("by_link");
    out.by_link = by_link != nullptr && by_link->is_bool() && by_link->get_bool();
    return out;
}

} // namespace sandboxd::sync
