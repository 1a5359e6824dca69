// `cp SRC DST`: what the two ends mean.
#include "cli/cp_paths.hpp"
#include "cli/failure.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::cli;

namespace {

copy plan(const std::string& source, const std::string& destination) {
    return plan_copy(source, destination, "/home/ada", [](const std::filesystem::path& path) {
        return path == "/home/ada" || path == "/home/ada/dir";
    });
}

std::string up(const std::string& source, const std::string& destination) {
    const copy what = plan(source, destination);
    CHECK(what.upload);
    return what.host + " > " + what.remote;
}

std::string down(const std::string& source, const std::string& destination) {
    const copy what = plan(source, destination);
    CHECK(!what.upload);
    return what.remote + " > " + what.host;
}

} // namespace

TEST_CASE("cp: into the sandbox") {
    CHECK(up("f", "sandbox:") == "/home/ada/f > f");
    CHECK(up("f", "sandbox:/workspace") == "/home/ada/f > /workspace/f");
    CHECK(up("/x/f", "sandbox:d/") == "/x/f > d/f");
    CHECK(up("/x/f", "sandbox:d/.") == "/x/f > d/f");
    CHECK(up("/x/f", "sandbox:d/..") == "/x/f > d/../f");
    CHECK(up("/x/f", "sandbox:.") == "/x/f > f");
    CHECK(up("/x/f", "sandbox:d.") == "/x/f > d.");
    CHECK(up("/x/f", "sandbox:d/./") == "/x/f > d/./f");
    CHECK(up("dir/", "sandbox:/workspace/other") == "/home/ada/dir > /workspace/other");
    CHECK(up("../ada/./f", "sandbox:g") == "/home/ada/f > g");
    CHECK(up(".", "sandbox:home") == "/home/ada > home");
    CHECK(up("/", "sandbox:all") == "/ > all");
}

TEST_CASE("cp: out of the sandbox") {
    CHECK(down("sandbox:f", ".") == "f > /home/ada/f");
    CHECK(down("sandbox:a/f", "dir") == "a/f > /home/ada/dir/f");
    CHECK(down("sandbox:/workspace/a/", "new") == "/workspace/a/ > /home/ada/new");
    CHECK(down("sandbox:/workspace/a/", "new/") == "/workspace/a/ > /home/ada/new/a");
    CHECK(down("sandbox:f", "/tmp/g") == "f > /tmp/g");
}

TEST_CASE("cp: what makes no sense is said") {
    CHECK_THROWS_AS(plan("a", "b"), usage_error);
    CHECK_THROWS_AS(plan("sandbox:a", "sandbox:b"), usage_error);
    CHECK_THROWS_AS(plan("sandbox:", "."), usage_error);
    CHECK_THROWS_AS(plan("", "sandbox:a"), usage_error);
}
