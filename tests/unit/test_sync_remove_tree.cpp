// Trees that are removed whatever they are like, or stay to be removed later.
#include "sync/host_stage.hpp"
#include "sync/remove_tree.hpp"
#include "sys/fd.hpp"
#include "temp_dir.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace sandboxd::sync;
using sandboxd::test::temp_dir;
using sandboxd::test::write_file;
namespace fs = std::filesystem;

namespace {

const deadline never = std::chrono::steady_clock::time_point::max();
const deadline at_once = std::chrono::steady_clock::time_point::min();

// Far deeper than any path is long; each level has a file too.
void make_deep(const fs::path& top, int levels) {
    fs::create_directory(top);
    sandboxd::sys::unique_fd at(::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int i = 0; i < levels; ++i) {
        REQUIRE(::mkdirat(at.get(), "x", 0700) == 0);
        const sandboxd::sys::unique_fd file(
            ::openat(at.get(), "f", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        REQUIRE(file);
        at.reset(::openat(at.get(), "x", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        REQUIRE(at);
    }
}

} // namespace

TEST_CASE("sync remove tree: of any depth, and what links lead to stays") {
    const temp_dir room;
    make_deep(room / "deep", 20'000);
    write_file(room / "kept", "x");
    fs::create_symlink(room / "kept", room / "deep" / "link");
    fs::create_directory(room / "dir");
    write_file(room / "dir" / "kept", "x");
    fs::create_directory_symlink(room / "dir", room / "deep" / "dir");
    CHECK(remove_tree(room / "deep", never));
    CHECK(!fs::exists(room / "deep"));
    CHECK(fs::exists(room / "kept"));
    CHECK(fs::exists(room / "dir" / "kept"));
    CHECK(remove_tree(room / "deep", never)); // as it is gone
    CHECK(remove_tree(room / "no" / "such", never));
}

TEST_CASE("sync remove tree: directories that forbid it are no obstacle") {
    const temp_dir room;
    fs::create_directories(room / "t" / "shut" / "inner");
    write_file(room / "t" / "shut" / "inner" / "f", "x");
    fs::permissions(room / "t" / "shut" / "inner", fs::perms::none);
    fs::permissions(room / "t" / "shut", fs::perms::owner_read);
    fs::permissions(room / "t", fs::perms::none);
    CHECK(remove_tree(room / "t", never));
    CHECK(!fs::exists(room / "t"));
}

TEST_CASE("sync remove tree: what is given up can be gone on with") {
    const temp_dir room;
    make_deep(room / "deep", 200);
    CHECK(!remove_tree(room / "deep", at_once));
    CHECK(fs::exists(room / "deep" / "x"));
    make_deep(room / "deep" / "removing-1", 40); // as an earlier try would have left it
    CHECK(remove_tree(room / "deep", never));
    CHECK(!fs::exists(room / "deep"));
}

TEST_CASE("sync host stage: its note is there as long as anything of it is") {
    const temp_dir room;
    const fs::path notes = room / "notes";
    {
        const host_stage stage(room.path(), notes, "one", at_once);
        write_file(stage.path() / "f", "x");
    }
    const std::vector<fs::path> left = stage_notes(notes);
    REQUIRE(left == std::vector{notes / "one"});
    sweep_stages(left, at_once);
    CHECK(stage_notes(notes) == left);
    CHECK(fs::exists(room / ".deepinfra-sandboxd-one"));
    sweep_stages(left, never);
    CHECK(stage_notes(notes).empty());
    CHECK(!fs::exists(room / ".deepinfra-sandboxd-one"));
}
