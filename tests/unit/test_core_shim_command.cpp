// What the daemon says to the shim: nothing is lost on the way there, and no two requests look the
// same.
#include "base/base64.hpp"
#include "base/error.hpp"
#include "base/utf8.hpp"
#include "core/shim_command.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::core;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// As daemon/shim/frames.h says; nothing for what the shim refuses.
std::optional<std::string> decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        const std::string digits(text.substr(i + 1, 2));
        if (digits.size() != 2 ||
            digits.find_first_not_of("0123456789ABCDEFabcdef") != std::string::npos ||
            digits == "00") {
            return std::nullopt;
        }
        out += static_cast<char>(std::stoi(digits, nullptr, 16));
        i += 2;
    }
    return out;
}

prepared_command run(const command_spec& spec, std::optional<milliseconds> timeout = {},
                     std::vector<std::string> ids = {}) {
    return shim_run("/shim", "id", spec, timeout, seconds(1200), ids, 1 << 20);
}

command_spec argv(std::vector<std::string> words) {
    command_spec spec;
    spec.argv = std::move(words);
    return spec;
}

// The value behind an option, in front of `--`.
std::optional<std::string> option(const std::vector<std::string>& words, const std::string& name) {
    const auto end = std::find(words.begin(), words.end(), "--");
    const auto found = std::find(words.begin(), end, name);
    return found == end || found + 1 == end ? std::nullopt : std::optional(*(found + 1));
}

std::vector<std::string> behind_dashes(const std::vector<std::string>& words) {
    return {std::find(words.begin(), words.end(), "--") + 1, words.end()};
}

} // namespace

TEST_CASE("shim command: every byte comes back") {
    std::mt19937 random(31);
    for (int round = 0; round < 3'000; ++round) {
        std::string bytes;
        for (unsigned size = random() % 40; size > 0; --size) {
            bytes += round % 3 == 0 ? static_cast<char>(random() % 255 + 1)
                                    : "%\xc3\xbc\xf0\x9f\x98\x80 4a\n\xff"[random() % 12];
        }
        CAPTURE(bytes);
        command_spec spec = argv({"x" + bytes, bytes, "--", bytes});
        spec.cwd = "/" + bytes;
        spec.env = {{"NAME", bytes}};
        const std::vector<std::string> words = run(spec).argv;
        for (const std::string& each : words) {
            REQUIRE(valid_utf8_prefix(each) == each.size());
        }
        const std::vector<std::string> rest = behind_dashes(words);
        REQUIRE(rest.size() == 4);
        CHECK(decoded(rest[0]) == "x" + bytes);
        CHECK(decoded(rest[1]) == bytes);
        CHECK(rest[2] == "--");
        CHECK(decoded(option(words, "--cwd").value()) == "/" + bytes);
        CHECK(decoded(option(words, "--env").value()) == "NAME=" + bytes);
    }
}

TEST_CASE("shim command: text is not made longer than it must be") {
    const std::string text = "plain text, 'quotes', blanks\n and \xe2\x82\xac";
    CHECK(behind_dashes(run(argv({text})).argv).at(0) == text);
    CHECK(run(argv({std::string(max_argument, 'x')})).argv.back().size() == max_argument);
}

TEST_CASE("shim command: what no kernel takes is refused") {
    const auto refused = [](const command_spec& spec) {
        try {
            run(spec);
        } catch (const rpc_error& error) {
            return error.name();
        }
        return error_name::internal_error;
    };
    CHECK(refused(argv({std::string(max_argument + 1, 'x')})) == error_name::argument_too_long);
    CHECK(refused(argv({std::string("a\0b", 3)})) == error_name::invalid_params);
    command_spec spec = argv({"x"});
    spec.cwd = std::string(max_argument + 1, '/');
    CHECK(refused(spec) == error_name::argument_too_long);
    spec = argv({"x"});
    spec.env = {{"", "x"}};
    CHECK(refused(spec) == error_name::invalid_params);
    spec.env = {{"a=b", "x"}};
    CHECK(refused(spec) == error_name::invalid_params);
}

TEST_CASE("shim command: text that would be too long encoded goes as it is") {
    const std::string signs(max_argument, '%');
    std::vector<std::string> words = run(argv({"printf", signs})).argv;
    CHECK(*(std::find(words.begin(), words.end(), "--") - 1) == "--raw");
    CHECK(behind_dashes(words) == std::vector<std::string>{"printf", signs});
    // Each fits, all together do not.
    const std::vector<std::string> many(20, std::string(43'000, '%'));
    words = run(argv(many)).argv;
    CHECK(behind_dashes(words) == many);
    // Where it makes no difference, nothing is said of it.
    words = run(argv({"100%"})).argv;
    CHECK(std::count(words.begin(), words.end(), "--raw") == 0);

    const auto refusal = [](const command_spec& spec) -> std::string {
        try {
            run(spec);
        } catch (const rpc_error& error) {
            CHECK(error.name() == error_name::argument_too_long);
            return error.what();
        }
        return "";
    };
    // What JSON cannot carry has no other way.
    CHECK(refusal(argv({"x", std::string(60'000, '\xff')})).find("on its way") !=
          std::string::npos);
    CHECK(refusal(argv(std::vector<std::string>(17, std::string(43'000, '\xff'))))
              .find(std::to_string(max_arguments)) != std::string::npos);
    CHECK(refusal(argv(std::vector<std::string>(20, std::string(120'000, 'x')))).find("in all") !=
          std::string::npos);
    CHECK(refusal(argv(std::vector<std::string>(17, std::string(120'000, 'x')))).empty());
}

TEST_CASE("shim command: input goes along while it is short, else through a file") {
    command_spec spec = argv({"cat"});
    CHECK_FALSE(option(run(spec).argv, "--stdin"));
    spec.stdin_data = "";
    CHECK(option(run(spec).argv, "--stdin") == "empty");
    for (const std::size_t size : {1U, 65536U}) {
        spec.stdin_data = std::string(size, '\0');
        const prepared_command built = run(spec);
        CHECK(built.uploads.empty());
        CHECK(option(built.argv, "--stdin") == "data:" + base64_encode(*spec.stdin_data));
    }
    spec.stdin_data = std::string(65537, '\xff');
    const prepared_command built = run(spec);
    REQUIRE(built.uploads.size() == 1);
    CHECK(built.uploads[0].bytes == *spec.stdin_data);
    CHECK(option(built.argv, "--stdin") == "file:" + built.uploads[0].path);
    CHECK(std::count(built.argv.begin(), built.argv.end(), "--unlink-stdin") == 1);
}

TEST_CASE("shim command: scripts, short and long") {
    command_spec spec;
    spec.script = "echo 100%";
    CHECK(behind_dashes(run(spec).argv) == std::vector<std::string>{"bash", "-c", "echo 100%25"});
    spec.login = true;
    CHECK(behind_dashes(run(spec).argv).at(1) == "-lc");
    for (const char filler : {'x', '%'}) { // the second is too long only once it is encoded
        spec.script = std::string(filler == 'x' ? max_argument + 1 : max_argument / 2, filler);
        const prepared_command built = run(spec);
        REQUIRE(built.uploads.size() == 1);
        CHECK(built.uploads[0].bytes == *spec.script);
        CHECK(behind_dashes(built.argv).back() == "-l");
        CHECK(std::count(built.argv.begin(), built.argv.end(), built.uploads[0].path) == 1);
    }
}

TEST_CASE("shim command: time-out, merging and what may be forgotten") {
    command_spec spec = argv({"x"});
    spec.merge_output = true;
    const std::vector<std::string> words = run(spec, milliseconds(1500), {"a", "b"}).argv;
    CHECK(option(words, "--timeout-ms") == "1500");
    CHECK(option(words, "--max-seconds") == "1200");
    CHECK(std::count(words.begin(), words.end(), "--merge") == 1);
    CHECK(std::count(words.begin(), words.end(), "--ack") == 2);
    CHECK_FALSE(option(run(argv({"x"})).argv, "--timeout-ms"));
}

TEST_CASE("shim command: the digest tells every field from every other") {
    std::vector<std::pair<command_spec, std::optional<milliseconds>>> requests;
    const auto add = [&](const std::function<void(command_spec&)>& change,
                         std::optional<milliseconds> timeout = {}) {
        command_spec spec;
        change(spec);
        requests.emplace_back(std::move(spec), timeout);
    };
    add([](auto&) {});
    add([](auto&) {}, milliseconds(0));
    add([](auto&) {}, milliseconds(1));
    add([](auto&) {}, milliseconds(10));
    for (const std::vector<std::string>& words : {std::vector<std::string>{""},
                                                  {"", ""},
                                                  {"a"},
                                                  {"b"},
                                                  {"a", "b"},
                                                  {"b", "a"},
                                                  {"ab"},
                                                  {"a", ""},
                                                  {"", "a"},
                                                  {"a:1"},
                                                  {"1:a"},
                                                  {"script"},
                                                  {"a", "6:script"},
                                                  {"login"},
                                                  {"stdin"},
                                                  {"merge"}}) {
        add([&](auto& spec) { spec.argv = words; });
    }
    for (const char* text : {"", "a", "login", "stdin"}) {
        add([&](auto& spec) { spec.script = text; });
        add([&](auto& spec) { spec.script = text, spec.login = true; });
        add([&](auto& spec) { spec.stdin_data = text; });
        add([&](auto& spec) { spec.script = text, spec.stdin_data = text; });
    }
    for (const char* text : {"a", "/a", "/"}) {
        add([&](auto& spec) { spec.cwd = text; });
    }
    for (const char* sum : {"", "aa", "ab"}) {
        add([&](auto& spec) { spec.script_size = 5, spec.script_sha256 = sum; });
    }
    for (const std::vector<std::pair<std::string, std::string>>& env :
         {std::vector<std::pair<std::string, std::string>>{{"a", ""}},
          {{"a", "b"}},
          {{"b", "a"}},
          {{"ab", ""}},
          {{"a", "b"}, {"c", "d"}},
          {{"a", "b"}, {"c", ""}}}) {
        add([&](auto& spec) { spec.env = env; });
    }
    add([](auto& spec) { spec.merge_output = true; });
    add([](auto& spec) { spec.login = true; });

    std::set<std::string> digests;
    for (const auto& [spec, timeout] : requests) {
        const std::string digest = command_digest(spec, timeout);
        CHECK(digest.size() == 64);
        CHECK(digest.find_first_not_of("0123456789abcdef") == std::string::npos);
        CHECK(digest == command_digest(spec, timeout));
        digests.insert(digest);
    }
    CHECK(digests.size() == requests.size());
}

TEST_CASE("shim command: input that comes in pieces") {
    CHECK(shim_stdin("/shim", "id", 5, {}) ==
          std::vector<std::string>{"/shim", "stdin", "id", "5"});
    CHECK(shim_stdin("/shim", "id", 5, {"abc", "", true}) ==
          std::vector<std::string>{"/shim", "stdin", "id", "5", "--data", "YWJj", "--eof"});
    CHECK(shim_stdin("/shim", "id", 5, {"", "/a%b", false}) ==
          std::vector<std::string>{"/shim", "stdin", "id", "5", "--file", "/a%25b", "--unlink"});
    command_spec spec;
    spec.script_size = 7;
    spec.stdin_open = true;
    spec.login = true;
    const prepared_command built = run(spec);
    CHECK(built.uploads.empty()); // whoever has it puts it there
    CHECK(option(built.argv, "--stdin") == "open");
    CHECK(behind_dashes(built.argv).front() == "bash");
    CHECK(built.argv.at(built.argv.size() - 2) == upload_path("script", "id"));
    CHECK(built.argv.back() == "-l");
}

TEST_CASE("shim command: following, killing, acknowledging") {
    CHECK(shim_follow("/shim", "id", 7, "d", seconds(9), 5000, true) ==
          std::vector<std::string>{"/shim", "follow", "id", "7", "--digest", "d", "--max-seconds",
                                   "9", "--max-bytes", "5000"});
    CHECK(shim_follow("/shim", "id", 7, "d", seconds(9), 5000, false).back() == "--unattended");
    std::vector<std::string> bounded{"/shim", "run", "id", "--", "--max-bytes"};
    bound_run(bounded, 5000, seconds(2));
    CHECK(bounded == std::vector<std::string>{"/shim", "run", "id", "--max-bytes", "5000",
                                              "--spool-grace-ms", "2000", "--", "--max-bytes"});
    CHECK(shim_acknowledge("/shim", "id", 7) ==
          std::vector<std::string>{"/shim", "ack", "id", "7"});
    CHECK(option(shim_kill("/shim", "id", kill_signal::interrupt), "--signal") == "INT");
    CHECK(option(shim_kill("/shim", "id", kill_signal::terminate), "--signal") == "TERM");
    CHECK_FALSE(option(shim_kill("/shim", "id", kill_signal::kill), "--signal"));
    CHECK(shim_install("/tmp/a b", shim_path("h")).at(4) == "/tmp/a b");
}

TEST_CASE(
    "shim run: marks are asked for by their paths, and are no part of what tells commands apart") {
    const command_spec spec = argv({"true"});
    const prepared_command built = shim_run("/shim", "id", spec, std::nullopt, seconds(1200), {},
                                            1 << 20, {"/workspace/a%b/m", "/workspace/m"});
    const std::vector<std::string> wanted{"--mark", "/workspace/a%25b/m", "--mark", "/workspace/m"};
    CHECK(std::search(built.argv.begin(), built.argv.end(), wanted.begin(), wanted.end()) !=
          built.argv.end());
}
