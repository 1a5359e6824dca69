// How people are shown a profile that the plugin names by its home.
#include "cli/profiles.hpp"
#include "temp_dir.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace sandboxd::cli;
using sandboxd::test::temp_dir;

namespace {

const std::filesystem::path home = "/home/of-nobody";

} // namespace

TEST_CASE("cli profiles: below the native root by their names") {
    CHECK(profile_name("default", home) == "default");
    CHECK(profile_name("/home/of-nobody/.hermes/profiles/work", home) == "work");
    CHECK(profile_name("", home).empty());
    CHECK(profile_name("another program's", home) == "another program's");
}

TEST_CASE("cli profiles: elsewhere with what tells their roots apart") {
    const std::set<std::string> names{profile_name("/srv/a", home), profile_name("/srv/b", home),
                                      profile_name("/srv/a/profiles/work", home),
                                      profile_name("/srv/b/profiles/work", home),
                                      profile_name("/home/of-another/.hermes/profiles/work", home)};
    CHECK(names.size() == 5);
    const std::string name = profile_name("/srv/a/profiles/work", home);
    CHECK(name.starts_with("work~"));
    CHECK(name.size() == 11);
    CHECK(profile_name("/srv/a", home) == "default" + name.substr(4));
}

TEST_CASE("cli profiles: a path means what the plugin calls it") {
    const temp_dir scratch;
    const std::filesystem::path user = std::filesystem::canonical(scratch.path());
    std::filesystem::create_directories(user / "real/profiles/work");
    std::filesystem::create_directory_symlink("real", user / ".hermes");
    CHECK(profile_at((user / "real").string(), user) == "default");
    CHECK(profile_at((user / ".hermes/").string(), user) == "default");
    CHECK(profile_at("~/.hermes", user) == "default");
    const std::string work = (user / "real/profiles/work").string();
    CHECK(profile_at((user / ".hermes/profiles/work").string() + "/", user) == work);
    CHECK(profile_at("~/.hermes/profiles/../profiles/work", user) == work);
    CHECK(profile_at("/srv/nowhere//profiles/x/", user) == "/srv/nowhere/profiles/x");
    CHECK(profile_at("./x", user) == (std::filesystem::canonical(".") / "x").string());
    CHECK(profile_at("a/x/", user) == (std::filesystem::canonical(".") / "a/x").string());
    for (const char* name : {"work", "default", "", "a/b", "~"})
        CHECK(!profile_at(name, user));
}

TEST_CASE("cli profiles: a short name is one that is known, or has its home below ~/.hermes") {
    using names = std::set<std::string>;
    const temp_dir scratch;
    const std::filesystem::path user = std::filesystem::canonical(scratch.path());
    std::filesystem::create_directories(user / ".hermes/profiles/work");
    const std::string work = (user / ".hermes/profiles/work").string();
    CHECK(profiles_called("work", {}, user) == names{work});
    CHECK(profiles_called("work", {work, "other"}, user) == names{work});
    CHECK(profiles_called("work", {"work"}, user) == names{"work", work}); // another program's
    CHECK(profiles_called("none", {"none", work}, user) == names{"none"});
    CHECK(profiles_called("none", {work}, user).empty());
    const std::string far = "/srv/a/profiles/work";
    CHECK(profiles_called(profile_name(far, user), {far, work}, user) == names{far});
    for (const char* odd : {"", "../profiles/work"})
        CHECK(profiles_called(odd, {}, user).empty());
}

TEST_CASE("cli profiles: wherever an answer has one") {
    const json::object shown = with_profile_names(
        {{"sandboxes", json::array{json::object{
                           {"key", json::object{{"profile", "/home/of-nobody/.hermes/profiles/p"},
                                                {"task", "/home/of-nobody/.hermes/profiles/p"}}}}}},
         {"profile", 1}},
        home);
    const json::object& key = shown.at("sandboxes").as_array()[0].as_object().at("key").as_object();
    CHECK(key.at("profile") == "p");
    CHECK(key.at("task") == "/home/of-nobody/.hermes/profiles/p");
    CHECK(shown.at("profile") == 1);
}
