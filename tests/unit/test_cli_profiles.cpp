// How people are shown a profile that the plugin names by its home.
#include "cli/profiles.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace sandboxd::cli;

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
