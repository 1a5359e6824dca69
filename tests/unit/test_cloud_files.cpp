// Files as bodies of requests and answers: what of a descriptor is sent, where an answer is
// written, and what a fault on either side comes out as.
#include "cloud_server.hpp"

#include "sys/fd.hpp"
#include "temp_dir.hpp"

#include <fcntl.h>

#include <random>

using namespace sandboxd;
using namespace sandboxd::cloud;
using namespace sandboxd::cloud::test;

namespace {

using bench = client_bench;

std::string noise(std::size_t size) {
    std::mt19937 random(7);
    std::string out(size, '\0');
    for (char& c : out)
        c = static_cast<char>(random());
    return out;
}

class scratch_file {
public:
    explicit scratch_file(const std::string& content = {})
        : fd_(::open((directory_.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
        REQUIRE(::pwrite(fd_.get(), content.data(), content.size(), 0) ==
                static_cast<ssize_t>(content.size()));
    }
    int fd() const { return fd_.get(); }
    std::string content() const {
        std::string out(static_cast<std::size_t>(::lseek(fd_.get(), 0, SEEK_END)), '\0');
        REQUIRE(::pread(fd_.get(), out.data(), out.size(), 0) == static_cast<ssize_t>(out.size()));
        return out;
    }

private:
    sandboxd::test::temp_dir directory_;
    sys::unique_fd fd_;
};

} // namespace

TEST_CASE("cloud files: a stretch of a file is sent byte for byte, and the connection lives on") {
    std::vector<http_message> seen;
    bench b(answering([&seen](const http_message& request) {
        seen.push_back(request);
        return http_answer(200, "{}");
    }));
    const std::string all = noise(3'000'000);
    const scratch_file file(all);
    CHECK(b.wait(b.api->put_file("sb_1", "/workspace/a b", file.fd(), 0, all.size())).has_value());
    CHECK(
        b.wait(b.api->put_file("sb_1", "/workspace/b", file.fd(), 1'234'567, 700'001)).has_value());
    CHECK(b.wait(b.api->put_file("sb_1", "/workspace/c", file.fd(), 5, 0)).has_value());
    REQUIRE(seen.size() == 3);
    CHECK(std::string(seen[0].target()) == "/v1/sandboxes/sb_1/fs/content?path=/workspace/a%20b");
    CHECK(seen[0]["Content-Type"] == "application/octet-stream");
    CHECK(seen[0].body() == all);
    CHECK(seen[1].body() == all.substr(1'234'567, 700'001));
    CHECK(seen[2].body().empty());
    CHECK(seen[2]["Content-Length"] == "0");
    CHECK(b.server.connections == 1);
}

TEST_CASE(
    "cloud files: a file that became shorter is a failure, and its connection is not used again") {
    bench b(answering([](const http_message&) { return http_answer(200, "{}"); }));
    const scratch_file file(noise(1000));
    const auto cut = b.wait(b.api->put_file("sb_1", "/workspace/a", file.fd(), 0, 1001));
    REQUIRE(!cut.has_value());
    CHECK(cut.error().kind == failure_kind::bad_request);
    CHECK(cut.error().message.find("became shorter") != std::string::npos);
    CHECK(b.api->idle_connections() == 0);
    const auto unreadable = b.wait(b.api->put_file("sb_1", "/workspace/a", -1, 0, 1));
    REQUIRE(!unreadable.has_value());
    CHECK(unreadable.error().kind == failure_kind::bad_request);
}

TEST_CASE("cloud files: more than a call may carry is refused before it is sent") {
    bench b(answering([](const http_message&) { return http_answer(200, "{}"); }));
    const scratch_file file;
    CHECK(b.wait(b.api->put_file("sb_1", "/workspace/a", file.fd(), 0, largest_content + 1))
              .error()
              .kind == failure_kind::too_large);
    CHECK(b.wait(b.api->put_file("..", "/workspace/a", file.fd(), 0, 0)).error().kind ==
          failure_kind::bad_request);
    CHECK(b.wait(b.api->get_content("", "/workspace/a", file.fd(), 0, 1)).error().kind ==
          failure_kind::bad_request);
    CHECK(b.api->requests() == 0);
}

TEST_CASE("cloud files: a server that refuses before it has read the body is heard") {
    bench b([](peer& one) -> asio::awaitable<void> {
        co_await one.read_once();
        co_await one.write(http_answer(413, R"({"detail":"too large"})", "Connection: close\r\n"));
    });
    const std::string all = noise(2'000'000);
    const scratch_file file(all);
    const auto refused = b.wait(b.api->put_file("sb_1", "/workspace/a", file.fd(), 0, all.size()));
    REQUIRE(!refused.has_value());
    // The answer may have been overtaken by the reset that closing with unread data causes.
    const bool heard = refused.error().kind == failure_kind::too_large ||
                       refused.error().kind == failure_kind::interrupted;
    CHECK(heard);
}

TEST_CASE("cloud files: an answer goes into the file where it was asked to") {
    const std::string all = noise(1'500'000);
    std::string target;
    bench b(answering([&](const http_message& request) {
        target = request.target();
        if (target.find("chunked") == std::string::npos) return http_answer(200, all);
        return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(all) + last_chunk;
    }));
    for (const std::string name : {"plain", "chunked"}) {
        CAPTURE(name);
        const scratch_file file("xxx");
        CHECK(*b.wait(b.api->get_content("sb_1", "/workspace/" + name, file.fd(), 3, all.size())) ==
              all.size());
        CHECK(target == "/v1/sandboxes/sb_1/fs/content?path=/workspace/" + name);
        const bool same = file.content() == "xxx" + all;
        CHECK(same);
    }
    CHECK(b.server.connections == 1);
    CHECK(b.api->idle_connections() == 1);
}

TEST_CASE(
    "cloud files: never more than the limit is written, whether the answer tells its size or not") {
    const std::string all = noise(300'000);
    bench b(answering([&](const http_message& request) {
        const bool told = std::string(request.target()).find("told") != std::string::npos;
        if (told) return http_answer(200, all);
        return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(all) + last_chunk;
    }));
    for (const std::string name : {"told", "chunked"}) {
        CAPTURE(name);
        const scratch_file file;
        const auto refused =
            b.wait(b.api->get_content("sb_1", "/workspace/" + name, file.fd(), 0, all.size() - 1));
        REQUIRE(!refused.has_value());
        CHECK(refused.error().kind == failure_kind::too_large);
        CHECK(file.content().size() < all.size());
        CHECK(b.api->idle_connections() == 0);
    }
    const scratch_file file;
    const auto unwritten = b.wait(b.api->get_content("sb_1", "/workspace/told", -1, 0, all.size()));
    REQUIRE(!unwritten.has_value());
    CHECK(unwritten.error().kind == failure_kind::bad_request);
}

TEST_CASE(
    "cloud files: an answer that is cut is a failure at every place, and errors are told as ever") {
    const std::string whole = http_answer(200, noise(500));
    for (std::size_t i = 0; i < whole.size(); i += 7) {
        bench b([&whole, i](peer& one) -> asio::awaitable<void> {
            co_await one.request();
            co_await one.write(whole.substr(0, i));
        });
        const scratch_file file;
        const auto cut = b.wait(b.api->get_content("sb_1", "/workspace/a", file.fd(), 0, 500));
        REQUIRE(!cut.has_value());
        CHECK(cut.error().kind == failure_kind::interrupted);
    }
    bench missing(
        answering([](const http_message&) { return http_answer(404, R"({"detail":"no file"})"); }));
    const scratch_file file;
    CHECK(missing.wait(missing.api->get_content("sb_1", "/workspace/a", file.fd(), 0, 9))
              .error()
              .kind == failure_kind::not_found);
    CHECK(missing.api->idle_connections() == 1);
}
