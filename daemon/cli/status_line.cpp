#include "cli/status_line.hpp"

#include "cli/text.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace sandboxd::cli {
namespace {

void put(std::string_view text) {
    (void)!::write(STDERR_FILENO, text.data(), text.size());
}

// The last column stays free: some terminals wrap as soon as it is taken.
std::size_t room() {
    winsize size{};
    const bool told = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return told ? size.ws_col - 1U : 79;
}

} // namespace

void status_line::show(std::string_view text) {
    put("\r" + cut_to(room(), text) + "\x1b[K");
    shown_ = true;
}

void status_line::clear() {
    if (std::exchange(shown_, false)) put("\r\x1b[K");
}

} // namespace sandboxd::cli
