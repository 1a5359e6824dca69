#include "cli/notices.hpp"

#include "cli/connection.hpp"
#include "cli/text.hpp"

#include <unistd.h>

#include <string>
#include <utility>

namespace sandboxd::cli {
namespace {

constexpr std::string_view prefix = "deepinfra-sandboxd: ";

void write_to_stderr(std::string_view text) {
    (void)!::write(STDERR_FILENO, text.data(), text.size());
}

} // namespace

void notices::say(std::string_view text) {
    clear();
    const std::string begin = std::exchange(mid_line_, false) ? "\n" : "";
    write_to_stderr(begin + std::string(prefix) + printable(text) + "\n");
}

void notices::say_to_people(std::string_view text) {
    if (terminal_) say(text);
}

void notices::progress(const json::object& news) {
    if (!terminal_ || mid_line_) return;
    const auto waited = number_of(news, "waited_s").value_or(0);
    std::string line(prefix);
    if (waited >= 1) line += "(" + human_time(std::chrono::duration<double>(waited)) + ") ";
    line_.show(line + printable(text_of(news, "text")));
}

} // namespace sandboxd::cli
