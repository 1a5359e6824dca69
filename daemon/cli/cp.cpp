// `cp`: a file or a directory into a sandbox, or out of it.
#include "base/base64.hpp"
#include "base/id.hpp"
#include "base/utf8.hpp"
#include "cli/cp_paths.hpp"
#include "cli/profiles.hpp"
#include "cli/status_line.hpp"
#include "cli/verb.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

namespace sandboxd::cli {
namespace fs = std::filesystem;
namespace {

constexpr int most_tries = 5;
constexpr std::chrono::milliseconds between_tries{500};

json::value bytes_value(const std::string& bytes) {
    if (is_utf8(bytes)) return json::value(bytes);
    return json::object{{"b64", base64_encode(bytes)}};
}

std::string bytes_text(const json::object& from, std::string_view name) {
    if (const json::value* value = from.if_contains(name); value != nullptr && value->is_object()) {
        return base64_decode(text_of(value->as_object(), "b64")).value_or("?");
    }
    return std::string(text_of(from, name));
}

std::string human_size(double bytes) {
    constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit)
        bytes /= 1024;
    char text[32];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return text;
}

// One line on the terminal that is written over and over, and is gone at the end.
class progress_line {
public:
    explicit progress_line(bool wanted) : wanted_(wanted) {}

    void show(std::string_view method, const json::object& news) {
        if (!wanted_) return;
        if (method == "sandbox.progress") {
            line_.show(printable(text_of(news, "text")));
        } else if (method == "fs.progress") {
            line_.show(transfer_text(news));
        }
    }
    void clear() { line_.clear(); }

private:
    std::string transfer_text(const json::object& news) {
        const std::string phase = printable(text_of(news, "phase"));
        const double done = number_of(news, "done_bytes").value_or(0);
        const std::optional<double> total = number_of(news, "total_bytes");
        if (!total || *total <= 0) return phase;
        constexpr int width = 30;
        const double share = std::clamp(done / *total, 0.0, 1.0);
        const int filled = static_cast<int>(share * width);
        char percent[8];
        std::snprintf(percent, sizeof percent, "%3.0f%%", share * 100);
        return phase + " [" + std::string(static_cast<std::size_t>(filled), '#') +
               std::string(static_cast<std::size_t>(width - filled), ' ') + "] " + percent + " " +
               human_size(done) + " of " + human_size(*total);
    }

    bool wanted_;
    status_line line_;
};

// A daemon that ends meanwhile is waited for and asked again: half a transfer leaves nothing
// behind.
json::object transfer(const context& here, const copy& what, json::object params) {
    const std::string_view method = what.upload ? "fs.put" : "fs.get";
    progress_line line(here.err_is_terminal);
    bool begun = false;
    for (int attempt = 1;; ++attempt) {
        try {
            connection daemon = here.connect_with_key();
            begun = true;
            if (what.upload && daemon.can("put_into_directory")) params["into_directory"] = true;
            daemon.on_notification = [&line](std::string_view name, const json::object& news) {
                line.show(name, news);
            };
            return daemon.call(method, params);
        } catch (const failure& problem) {
            const bool gone = problem.code() == exit_code::not_running ||
                              problem.name() == connection_closed ||
                              problem.name() == "shutting_down";
            if (!gone || !begun || attempt == most_tries) {
                line.clear();
                throw;
            }
        }
        ::poll(nullptr, 0, static_cast<int>(between_tries.count()));
    }
}

std::string summary(const json::object& result, const copy& what) {
    const double bytes = number_of(result, "bytes").value_or(0);
    const auto files = static_cast<std::size_t>(integer_of(result, "files").value_or(0));
    std::string where = what.upload ? "sandbox:" + what.remote : what.host;
    if (flag_of(result, "into_directory")) where += "/" + fs::path(what.host).filename().string();
    return "copied " + counted(files, "file", "files") + ", " + human_size(bytes) + ", to " +
           printable(where) + "\n";
}

void report_skipped(const json::object& result, const context& here) {
    const json::array& skipped = array_of(result, "skipped");
    std::string text;
    for (const json::value& each : skipped) {
        if (!each.is_object()) continue;
        const json::object& path = each.as_object();
        text += here.err(paint::warning, "not copied:") + " " +
                printable(bytes_text(path, path.contains("host") ? "host" : "remote")) + ": " +
                printable(text_of(path, "text")) + "\n";
    }
    if (const auto more = integer_of(result, "skipped_more").value_or(0); more > 0) {
        text += "... and " + std::to_string(more) + " more\n";
    }
    (void)!::write(STDERR_FILENO, text.data(), text.size());
}

int run(const context& here, const arguments& given) {
    if (given.positionals().size() != 2) throw usage_error("give SRC and DST", "cp");
    const auto is_directory = [](const fs::path& path) {
        std::error_code ignored;
        return fs::is_directory(path, ignored);
    };
    const auto real_path = [](const fs::path& path) {
        std::error_code none; // the daemon says what is wrong with it
        const fs::path real = fs::canonical(path, none);
        return none ? path : real;
    };
    const copy what = plan_copy(given.positionals()[0], given.positionals()[1], fs::current_path(),
                                is_directory, real_path);
    json::object params{{"key", key_of(given)},
                        {"host", bytes_value(what.host)},
                        {"remote", bytes_value(what.remote)},
                        {"transfer", "cp-" + random_hex(8)}};
    const json::object result =
        transfer(here, what, with_real_profile(here, std::move(params), "cp"));
    if (given.has("json")) {
        print_json(result);
    } else {
        print(summary(result, what));
        report_skipped(result, here);
    }
    const bool whole = array_of(result, "skipped").empty();
    return static_cast<int>(whole ? exit_code::ok : exit_code::error);
}

} // namespace

const verb cp_verb{
    .name = "cp",
    .usage = "cp [--task TASK] [--profile PROFILE] SRC DST",
    .summary = "copy a file or directory into a sandbox, or out of it",
    .details =
        R"(Copies a file, or a directory with all that is in it. One of SRC and DST is in the sandbox and
is written sandbox:PATH, below /workspace or relative to it. A DST that ends in a slash, or is a
directory here, means "into it", and so does, for a file, one that is a directory in the sandbox;
else it is the copy's own name, and a directory there is merged.
Modes and links within a directory are kept. Each file appears whole or not at all. What cannot be
copied is named, and the exit code is 1 then.

examples:
  deepinfra-sandboxd cp data.csv sandbox:
  deepinfra-sandboxd cp --task build src sandbox:/workspace/app/src
  deepinfra-sandboxd cp sandbox:out/report.pdf .
)",
    .flags = {{"task,t", "TASK", "whose sandbox [default: default]"},
              {"profile,p", "PROFILE", "whose task [default: default]"},
              {"json", nullptr, "one JSON object: the daemon's answer"}},
    .positionals = 2,
    .run = run,
};

} // namespace sandboxd::cli
