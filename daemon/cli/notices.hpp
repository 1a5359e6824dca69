// What we ourselves say on stderr while a command or a sandbox is waited for: remarks, and on a
// terminal one line of progress that is written over. Text of others is escaped.
#pragma once

#include "cli/status_line.hpp"

#include <boost/json/object.hpp>

#include <string_view>

namespace sandboxd::cli {

namespace json = boost::json;

class notices {
public:
    explicit notices(bool terminal) : terminal_(terminal) {}
    // A line of its own.
    void say(std::string_view text);
    // The same, if somebody sits there.
    void say_to_people(std::string_view text);
    // The params of sandbox.progress; not while a line of output stands unfinished.
    void progress(const json::object& news);
    // Makes room for output.
    void clear() { line_.clear(); }
    // The terminal's last line is unfinished, or not.
    void mid_line(bool unfinished) noexcept { mid_line_ = terminal_ && unfinished; }

private:
    bool terminal_;
    status_line line_;
    bool mid_line_ = false;
};

} // namespace sandboxd::cli
