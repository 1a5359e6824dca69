// Which paths and links may be transferred.
#include "sync/path.hpp"

#include <doctest/doctest.h>

using namespace sandboxd::sync;

TEST_CASE("sync path: only /workspace and what is below it, in one spelling") {
    CHECK(workspace_path("/workspace") == "/workspace");
    CHECK(workspace_path("/workspace//a/./b/") == "/workspace/a/b");
    CHECK(workspace_path("a b") == "/workspace/a b");
    CHECK(workspace_path(".") == "/workspace");
    CHECK(workspace_path("$(touch x)\n") == "/workspace/$(touch x)\n");
    CHECK(workspace_path("...") == "/workspace/...");
    CHECK(workspace_path("\xff") == "/workspace/\xff");
    for (const std::string_view bad :
         {"", "/", "/etc", "/workspace/../etc", "..", "a/../b", "/workspacex", "/workspace/..",
          "/workspace/.deepinfra-sandboxd", ".deepinfra-sandboxd/sync", "//etc"}) {
        CAPTURE(bad);
        CHECK(!workspace_path(bad));
    }
    CHECK(!workspace_path(std::string_view("a\0b", 3)));
    CHECK(workspace_path("/workspace/.deepinfra-sandboxd-x"));
}

TEST_CASE("sync path: what a path is in, and what is below it") {
    CHECK(parent_of("/workspace/a/b/c") == "/workspace/a/b");
    CHECK(parent_of("/workspace/a") == "/workspace");
    CHECK(is_below("/workspace/a", "/workspace/a"));
    CHECK(!is_below("/workspace/ab", "/workspace/a"));
}

TEST_CASE("sync path: links that stay in their tree") {
    CHECK(link_stays_inside("", "f"));
    CHECK(link_stays_inside("a/b", "../../f"));
    CHECK(link_stays_inside("a", "./.././f"));
    CHECK(link_stays_inside("", "a/../b"));
    CHECK(!link_stays_inside("", ".."));
    CHECK(!link_stays_inside("a", "../.."));
    CHECK(!link_stays_inside("a/b", "/workspace/a"));
    CHECK(!link_stays_inside("", "a/../../b"));
    CHECK(!link_stays_inside("", ""));
    // "a" may be a link to the root itself, so that "a/.." is outside.
    CHECK(!foreign_link_stays_inside("", "a/../b"));
    CHECK(foreign_link_stays_inside("a/b", "../../f/g"));
    CHECK(!foreign_link_stays_inside("a/b", "../../../f"));
}

TEST_CASE("sync path: members of an archive that is not trusted") {
    CHECK(member_is_inside("workspace/a", "workspace/a"));
    CHECK(member_is_inside("workspace/a/b c/..d", "workspace/a"));
    for (const std::string_view bad :
         {"/workspace/a", "workspace/ab", "workspace", "workspace/a/../b", "workspace/a/./b",
          "workspace/a//b", "workspace/a/", "", "../workspace/a", "workspace/a/.."}) {
        CAPTURE(bad);
        CHECK(!member_is_inside(bad, "workspace/a"));
    }
    CHECK(!member_is_inside(std::string_view("workspace/a/\0", 13), "workspace/a"));
}
