// Log lines as the journal and as people get them; what comes from elsewhere cannot forge one.
#include "sys/fd.hpp"
#include "sys/logging.hpp"

#include <doctest/doctest.h>
#include <spdlog/spdlog.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

using namespace sandboxd::sys;

namespace {

// What is logged meanwhile; `journal`: with stderr claimed to be the journal.
std::string logged(bool journal, log_level level, const std::function<void()>& act) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const unique_fd reader(ends[0]);
    unique_fd writer(ends[1]);
    const unique_fd before(::dup(STDERR_FILENO));
    const auto logger_before = spdlog::default_logger();
    struct stat status {};
    REQUIRE(::fstat(writer.get(), &status) == 0);
    const std::string stream =
        std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino + (journal ? 0 : 1));
    ::setenv("JOURNAL_STREAM", stream.c_str(), 1);
    ::dup2(writer.get(), STDERR_FILENO);
    init_logging(level);
    act();
    ::dup2(before.get(), STDERR_FILENO);
    ::unsetenv("JOURNAL_STREAM");
    spdlog::set_default_logger(logger_before);
    writer.reset();

    std::string text;
    char bytes[4096];
    for (ssize_t n; (n = ::read(reader.get(), bytes, sizeof bytes)) > 0;) {
        text.append(bytes, static_cast<std::size_t>(n));
    }
    return text;
}

void one_of_each() {
    spdlog::debug("d");
    spdlog::info("i {}", 1);
    spdlog::warn("w");
    spdlog::error("e");
}

} // namespace

TEST_CASE("log: the journal gets priorities and keeps the time itself") {
    CHECK(logged(true, log_level::debug, one_of_each) == "<7>d\n<6>i 1\n<4>w\n<3>e\n");
    CHECK(logged(true, log_level::warning, one_of_each) == "<4>w\n<3>e\n");
}

TEST_CASE("log: an inherited JOURNAL_STREAM that is not our stderr means people read it") {
    const std::string text = logged(false, log_level::info, one_of_each);
    CHECK(text.find('<') == std::string::npos);
    CHECK(text.find(" info    i 1\n") != std::string::npos);
    CHECK(text.find(" warning w\n") != std::string::npos);
}

TEST_CASE("log: a line from elsewhere stays one line") {
    const std::string hostile = "a\n<2>forged\x1b[2J\x7f";
    CHECK(logged(true, log_level::info, [&] { spdlog::info("{}", hostile); }) ==
          "<6>a\\x0a<2>forged\\x1b[2J\\x7f\n");
}
