#include "cli/output_line.hpp"

#include "base/json_text.hpp"

#include <boost/json/parse.hpp>

#include <string>

namespace sandboxd::cli {
namespace json = boost::json;

namespace {

constexpr std::string_view opening = R"({"jsonrpc":"2.0","method":"exec.output","params":{)";
constexpr std::string_view before_text = R"(,"data":")"; // in no string: a quote is escaped there
constexpr std::string_view closing = "}}";
constexpr std::size_t longest_head = 1024;

} // namespace

std::optional<json::object> read_output_line(std::string_view line) {
    if (!line.starts_with(opening)) return std::nullopt;
    const std::size_t at = line.substr(0, longest_head).find(before_text, opening.size());
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view members = line.substr(opening.size(), at - opening.size());
    const std::string_view rest = line.substr(at + before_text.size());

    std::string text;
    const auto end = append_json_unescaped(text, rest);
    if (!end || rest.substr(*end + 1) != closing) return std::nullopt;

    boost::system::error_code error;
    json::value params = json::parse("{" + std::string(members) + "}", error);
    if (error.failed() || params.get_object().contains("data")) return std::nullopt;
    params.get_object()["data"] = text;
    return json::object{
        {"jsonrpc", "2.0"}, {"method", "exec.output"}, {"params", std::move(params)}};
}

} // namespace sandboxd::cli
