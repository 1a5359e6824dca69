#include "sys/logging.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace sandboxd::sys {
namespace {

// The `<N>` of sd-daemon(3).
class journal_priority : public spdlog::custom_flag_formatter {
public:
    void format(const spdlog::details::log_msg& message, const std::tm&,
                spdlog::memory_buf_t& out) override {
        const char* prefix = "<6>";
        if (message.level <= spdlog::level::debug) prefix = "<7>";
        if (message.level == spdlog::level::warn) prefix = "<4>";
        if (message.level == spdlog::level::err) prefix = "<3>";
        if (message.level == spdlog::level::critical) prefix = "<2>";
        out.append(prefix, prefix + 3);
    }
    std::unique_ptr<custom_flag_formatter> clone() const override {
        return std::make_unique<journal_priority>();
    }
};

class escaped_message : public spdlog::custom_flag_formatter {
public:
    void format(const spdlog::details::log_msg& message, const std::tm&,
                spdlog::memory_buf_t& out) override {
        for (const char c : message.payload) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte >= 0x20 && byte != 0x7f) {
                out.push_back(c);
                continue;
            }
            char text[8];
            const int length = std::snprintf(text, sizeof text, "\\x%02x", byte);
            out.append(text, text + length);
        }
    }
    std::unique_ptr<custom_flag_formatter> clone() const override {
        return std::make_unique<escaped_message>();
    }
};

// JOURNAL_STREAM is inherited by children whose stderr goes elsewhere; it names device and inode of
// the real one.
bool stderr_is_the_journal() {
    const char* stream = std::getenv("JOURNAL_STREAM"); // NOLINT(concurrency-mt-unsafe): at start
    struct stat status {};
    if (stream == nullptr || ::fstat(STDERR_FILENO, &status) != 0) return false;
    return stream == std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

spdlog::level::level_enum to_spdlog(log_level level) {
    switch (level) {
    case log_level::trace:
        return spdlog::level::trace;
    case log_level::debug:
        return spdlog::level::debug;
    case log_level::info:
        return spdlog::level::info;
    case log_level::warning:
        return spdlog::level::warn;
    case log_level::error:
        return spdlog::level::err;
    }
    return spdlog::level::info;
}

} // namespace

void init_logging(log_level level) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<journal_priority>('Q').add_flag<escaped_message>('*');
    formatter->set_pattern(stderr_is_the_journal() ? "%Q%*" : "%Y-%m-%d %H:%M:%S.%e %-7l %*");

    auto logger = std::make_shared<spdlog::logger>(
        "deepinfra-sandboxd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_formatter(std::move(formatter));
    logger->set_level(to_spdlog(level));
    spdlog::set_default_logger(std::move(logger));
}

} // namespace sandboxd::sys
