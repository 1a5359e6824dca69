// The one line on a terminal's stderr that is written over while something is waited for. Never
// wider than the terminal: what wraps cannot be written over, and fills the screen.
#pragma once

#include <string_view>

namespace sandboxd::cli {

class status_line {
public:
    status_line() = default;
    ~status_line() { clear(); }
    status_line(const status_line&) = delete;
    status_line& operator=(const status_line&) = delete;

    // `text` is printable, see text.hpp. stderr is a terminal.
    void show(std::string_view text);
    // Makes room for other text.
    void clear();

private:
    bool shown_ = false;
};

} // namespace sandboxd::cli
