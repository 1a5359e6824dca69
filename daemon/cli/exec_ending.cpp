#include "cli/exec_ending.hpp"

#include "cli/connection.hpp"

#include <algorithm>

namespace sandboxd::cli {
namespace {

int exit_status(std::int64_t returncode) {
    if (returncode >= 0 && returncode <= 255) return static_cast<int>(returncode);
    if (returncode < 0 && returncode >= -127) return static_cast<int>(128 - returncode); // a signal
    return 255;
}

} // namespace

exec_ending read_ending(const json::object& exit, std::uint64_t missing) {
    exec_ending end;
    std::string message(text_of(exit, "message"));
    if (flag_of(exit, "created")) {
        if (message.find(" in a new, empty one") == std::string::npos) { // the daemon's own words
            end.remarks.emplace_back("a new sandbox was made for this command: nothing of the one "
                                     "before is left, not even in /workspace");
        }
    } else if (flag_of(exit, "recreated") && integer_of(exit, "generation").value_or(0) > 1) {
        end.remarks.emplace_back("the sandbox was started anew for this command: processes and all "
                                 "outside /workspace are gone");
    }
    const auto dropped = integer_of(exit, "dropped_bytes").value_or(0);
    missing = std::max(missing, static_cast<std::uint64_t>(std::max<std::int64_t>(dropped, 0)));
    if (missing > 0) {
        end.remarks.push_back(std::to_string(missing) + " bytes of its output are missing");
    }

    const std::string_view reason = text_of(exit, "reason");
    if (reason == "exited") {
        end.code = exit_status(integer_of(exit, "returncode").value_or(255));
    } else if (reason == "timed_out") {
        end.code = static_cast<int>(exit_code::timed_out);
        if (message.empty()) message = "the command timed out";
    } else if (reason == "cancelled") {
        end.code = static_cast<int>(exit_code::cancelled);
    } else {
        const std::string_view started = text_of(exit, "started");
        std::string what = message.empty() ? "the command failed" : message;
        if (started == "yes") {
            what += " (it ran; how it ended is not known)";
        } else if (started != "no") {
            what += " (whether it ran is not known)";
        } else if (what.find("has not run") == std::string::npos) { // the daemon's own words
            what += " (it has not run)";
        }
        const json::object& error = object_of(exit, "error");
        end.code = static_cast<int>(exit_code::failed);
        end.trouble.emplace(exit_code::failed, what, std::string(text_of(error, "hint")),
                            std::string(text_of(error, "name")));
        return end;
    }
    if (!message.empty()) end.remarks.push_back(std::move(message));
    return end;
}

failure with_remark(const failure& why, std::string_view remark) {
    std::string what = why.what();
    if (what.find(remark) == std::string::npos && what.find("has not run") == std::string::npos) {
        what += "; " + std::string(remark);
    }
    return {why.code(), what, why.hint(), why.name()};
}

bool was_not_sent(const json::object& exit) {
    return text_of(object_of(exit, "error"), "name") == "shutting_down" &&
           text_of(exit, "started") == "no";
}

} // namespace sandboxd::cli
