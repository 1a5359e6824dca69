// `cp SRC DST`: what the two ends mean.
#include "cli/cp_paths.hpp"
#include "cli/failure.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::cli;

namespace {

copy plan(const std::string& source, const std::string& destination) {
    const auto is_directory = [](const std::filesystem::path& path) {
        return path == "/home/ada" || path == "/home/ada/dir";
    };
    const auto real_path = [](const std::filesystem::path& path) {
        CHECK(path == "/home/ada/link/..");
        return std::filesystem::path("/srv/where-it-leads");
    };
    return plan_copy(source, destination, "/home/ada", is_directory, real_path);
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
    CHECK(up("../ada/./f", "sandbox:g") == "/home/ada/../ada/f > g"); // ".." may be behind a link
    CHECK(up("link/../f", "sandbox:") == "/home/ada/link/../f > f");
    CHECK(up("link/..", "sandbox:") == "/srv/where-it-leads > where-it-leads");
    CHECK(up(".//dir//f", "sandbox:g") == "/home/ada/dir/f > g");
    CHECK(up(".", "sandbox:home") == "/home/ada > home");
    CHECK(up("/", "sandbox:all") == "/ > all");
}

TEST_CASE("cp: out of the sandbox") {
    CHECK(down("sandbox:f", ".") == "f > /home/ada/f");
    CHECK(down("sandbox:a/f", "dir") == "a/f > /home/ada/dir/f");
    CHECK(down("sandbox:/workspace/a/", "new") == "/workspace/a/ > /home/ada/new");
    CHECK(down("sandbox:/workspace/a/", "new/") == "/workspace/a/ > /home/ada/new/a");
    CHECK(down("sandbox:f", "/tmp/g") == "f > /tmp/g");
    CHECK(down("sandbox:f", "link/../g") == "f > /home/ada/link/../g");
}

TEST_CASE("cp: what makes no sense is said") {
    CHECK_THROWS_AS(plan("a", "b"), usage_error);
    CHECK_THROWS_AS(plan("sandbox:a", "sandbox:b"), usage_error);
    CHECK_THROWS_AS(plan("sandbox:", "."), usage_error);
    CHECK_THROWS_AS(plan("", "sandbox:a"), usage_error);
}
