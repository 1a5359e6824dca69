// How a command is said to a platform that knows an argv only: what is built, and, run by this
// machine's own /bin/sh, what comes of it byte for byte.
#include "core/attached_command.hpp"

#include "base/error.hpp"
#include "base/id.hpp"
#include "base/utf8.hpp"
#include "temp_dir.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

extern char** environ;

using namespace sandboxd;
using namespace sandboxd::core;
using strings = std::vector<std::string>;

namespace {

// A process of ours with its output in pipes; killed if a test leaves it behind.
class process {
public:
    explicit process(const strings& argv) {
        std::array<int, 2> out_pipe{};
        std::array<int, 2> err_pipe{};
        REQUIRE(::pipe2(out_pipe.data(), O_CLOEXEC) == 0);
        REQUIRE(::pipe2(err_pipe.data(), O_CLOEXEC) == 0);
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, out_pipe[1], 1);
        posix_spawn_file_actions_adddup2(&actions, err_pipe[1], 2);
        std::vector<char*> args;
        for (const std::string& each : argv)
            args.push_back(const_cast<char*>(each.c_str()));
        args.push_back(nullptr);
        REQUIRE(::posix_spawn(&pid_, args[0], &actions, nullptr, args.data(), environ) == 0);
        posix_spawn_file_actions_destroy(&actions);
        ::close(out_pipe[1]);
        ::close(err_pipe[1]);
        fds_ = {out_pipe[0], err_pipe[0]};
    }
    ~process() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
        for (const int fd : fds_)
            ::close(fd);
    }
    process(const process&) = delete;
    process& operator=(const process&) = delete;

    // Reads until both streams have ended, or until standard output holds `marker`.
    void read(const std::string& marker = {}) {
        std::array<pollfd, 2> polled{{{fds_[0], POLLIN, 0}, {fds_[1], POLLIN, 0}}};
        while (polled[0].fd >= 0 || polled[1].fd >= 0) {
            if (!marker.empty() && out.find(marker) != std::string::npos) return;
            REQUIRE(::poll(polled.data(), polled.size(), 30'000) > 0);
            for (std::size_t i = 0; i < 2; ++i) {
                if (polled[i].fd < 0 || polled[i].revents == 0) continue;
                char buffer[65'536];
                const ssize_t size = ::read(polled[i].fd, buffer, sizeof buffer);
                if (size <= 0) {
                    polled[i].fd = -1;
                } else {
                    (i == 0 ? out : err).append(buffer, static_cast<std::size_t>(size));
                }
            }
        }
    }
    // Its exit code, or minus the signal that ended it.
    int wait() {
        int status = 0;
        REQUIRE(::waitpid(pid_, &status, 0) == pid_);
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

    std::string out;
    std::string err;

private:
    pid_t pid_ = -1;
    std::array<int, 2> fds_{};
};

struct outcome {
    int code;
    std::string out;
    std::string err;
};

outcome run(const strings& argv) {
    process running(argv);
    running.read();
    const int code = running.wait();
    return {code, running.out, running.err};
}

std::string new_id() {
    return "unit-" + random_hex(8);
}

outcome run(command_spec spec) {
    if (spec.cwd.empty()) spec.cwd = "/";
    const prepared_command built = build_attached(spec, new_id());
    CHECK(built.uploads.empty());
    return run(built.argv);
}

command_spec argv_of(strings argv) {
    command_spec spec;
    spec.argv = std::move(argv);
    return spec;
}

command_spec script_of(std::string script) {
    command_spec spec;
    spec.script = std::move(script);
    return spec;
}

bool contains(const strings& list, const std::string& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

error_name refusal(const command_spec& spec) {
    try {
        build_attached(spec, "id");
    } catch (const rpc_error& error) {
        return error.name();
    }
    return error_name::internal_error;
}

// Alive and not just waiting to be reaped.
bool lives(const std::string& pid) {
    std::ifstream status("/proc/" + pid + "/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("State:")) return line.find('Z') == std::string::npos;
    }
    return false;
}

std::string all_bytes() {
    std::string bytes;
    for (int byte = 1; byte < 256; ++byte)
        bytes += static_cast<char>(byte);
    return bytes;
}

} // namespace

TEST_CASE("attached: an argv arrives as it is") {
    const outcome ended = run(
        argv_of({"printf", "<%s>", "a b", "", "$HOME", "'\"\\", "*", "-n", "\n", "\xE2\x82\xAC"}));
    CHECK(ended.code == 0);
    CHECK(ended.out == "<a b><><$HOME><'\"\\><*><-n><\n><\xE2\x82\xAC>");
    CHECK(ended.err.empty());
}

TEST_CASE("attached: bytes that are no text arrive as they are") {
    const std::string bytes = all_bytes();
    CHECK_FALSE(is_utf8(bytes));
    command_spec spec = argv_of({"printf", "%s", bytes, "\\0101\\n%s\n\n"});
    const prepared_command built = build_attached(spec, "id");
    for (const std::string& each : built.argv)
        CHECK(is_utf8(each));
    CHECK(run(spec).out == bytes + "\\0101\\n%s\n\n");
    spec = script_of("printf %s \"$V\"; printf %s '" + std::string("\xff\xfe\n") + "'");
    spec.env = {{"V", "\x80value\n\n"}};
    CHECK(run(spec).out == "\x80value\n\n\xff\xfe\n");
}

TEST_CASE("attached: exit codes are the command's own") {
    CHECK(run(argv_of({"sh", "-c", "exit 7"})).code == 7);
    CHECK(run(script_of("exit 3")).code == 3);
    CHECK(run(script_of("exec true")).code == 0);
    CHECK(run(script_of("set -euo pipefail; false; true")).code == 1);
    CHECK(run(script_of("kill -KILL $$")).code == -9);
    CHECK(run(argv_of({"no-such-program-here"})).code == 127);
    CHECK(run(argv_of({"/"})).code == 126);
    command_spec fed = script_of("cat >/dev/null; exit 4");
    fed.stdin_data = "text";
    CHECK(run(fed).code == 4);
}

TEST_CASE("attached: a script is bash's, byte for byte") {
    CHECK(run(script_of("echo ${BASH_VERSION:+bash}")).out == "bash\n");
    CHECK(run(script_of("true # c")).code == 0);
    CHECK(run(script_of("cat <<EOF\nx\nEOF")).out == "x\n");
    CHECK(run(script_of("")).code == 0);
    CHECK(run(script_of("shopt -q login_shell; echo $?")).out == "1\n");
    command_spec login = script_of("shopt -q login_shell; echo $?");
    login.login = true;
    CHECK(run(login).out == "0\n");
}

TEST_CASE("attached: standard input") {
    CHECK(run(argv_of({"cat"})).out.empty()); // and it ends
    CHECK(run(script_of("readlink /proc/self/fd/0")).out == "/dev/null\n");
    command_spec spec = argv_of({"cat"});
    spec.stdin_data = "";
    CHECK(run(spec).out.empty());
    for (const std::string& bytes :
         {std::string("x"), std::string("a\0b\n", 4), all_bytes(), std::string(65'536, '\xff')}) {
        spec.stdin_data = bytes;
        const outcome ended = run(spec);
        CHECK(ended.code == 0);
        CHECK((ended.out == bytes));
    }
    spec = argv_of({"true"}); // does not read it
    spec.stdin_data = std::string(65'536, 'x');
    CHECK(run(spec).code == 0);
}

TEST_CASE(
    "attached: input too long for an argument is put there first, in a file of the command's own") {
    command_spec spec = argv_of({"cat"});
    spec.stdin_data = std::string(65'537, 'x');
    prepared_command built = build_attached(spec, "some.id");
    REQUIRE(built.uploads.size() == 1);
    CHECK(built.uploads[0].path == "/workspace/.deepinfra-sandboxd/stdin-some.id");
    CHECK((built.uploads[0].bytes == *spec.stdin_data));
    for (const std::string& each : built.argv)
        CHECK(each.size() <= max_argument);

    // The same command with the file where this machine has it: it is read, and gone.
    const test::temp_dir dir;
    const std::string path = (dir / "input").string();
    test::write_file(path, *spec.stdin_data);
    std::replace(built.argv.begin(), built.argv.end(), built.uploads[0].path, path);
    std::replace(built.argv.begin(), built.argv.end(), std::string("/workspace"), std::string("/"));
    CHECK((run(built.argv).out == *spec.stdin_data));
    CHECK_FALSE(std::filesystem::exists(path));
    CHECK(run(built.argv).code == 125); // without it, the command is not run
}

TEST_CASE("attached: a script too long for an argument") {
    for (const bool login : {false, true}) {
        command_spec spec =
            script_of("echo \"$#\"; shopt -q login_shell; echo $?; : " + std::string(200'000, 'x') +
                      "\nexit 5\n");
        spec.login = login;
        prepared_command built = build_attached(spec, "some.id");
        REQUIRE(built.uploads.size() == 1);
        CHECK(built.uploads[0].path == "/workspace/.deepinfra-sandboxd/script-some.id");
        CHECK((built.uploads[0].bytes == *spec.script));

        const test::temp_dir dir;
        const std::string path = (dir / "script").string();
        test::write_file(path, *spec.script);
        std::replace(built.argv.begin(), built.argv.end(), built.uploads[0].path, path);
        std::replace(built.argv.begin(), built.argv.end(), std::string("/workspace"),
                     std::string("/"));
        const outcome ended = run(built.argv);
        CHECK(ended.code == 5);
        CHECK(ended.out == (login ? "0\n0\n" : "0\n1\n"));
        CHECK_FALSE(std::filesystem::exists(path));
    }
}

TEST_CASE("attached: the directory") {
    const test::temp_dir dir;
    command_spec spec = argv_of({"pwd"});
    const std::filesystem::path odd = dir / "-a 'b' \xff";
    std::filesystem::create_directory(odd);
    spec.cwd = odd.string();
    CHECK(run(spec).out == odd.string() + "\n");
    CHECK(contains(build_attached(argv_of({"pwd"}), "id").argv, "/workspace"));
    spec.cwd = (dir / "is not there").string();
    const outcome lost = run(spec);
    CHECK(lost.err.find(spec.cwd + " is not there, so this runs in /workspace") !=
          std::string::npos);
    CHECK((lost.code == 125 || lost.out == "/workspace\n")); // this machine may have one
}

TEST_CASE("attached: the environment") {
    command_spec spec = argv_of({"env"});
    spec.env = {{"PLAIN", "1"}, {"EMPTY", ""}, {"ODD", "a=b c\n'"}, {"with.dot", "x"}, {"-u", "y"}};
    const std::string id = new_id();
    spec.cwd = "/";
    const outcome ended = run(build_attached(spec, id).argv);
    for (const std::string& line :
         {std::string("PLAIN=1\n"), std::string("EMPTY=\n"), std::string("ODD=a=b c\n'\n"),
          std::string("with.dot=x\n"), std::string("-u=y\n"),
          "DEEPINFRA_SANDBOXD_EXEC=" + id + "\n"}) {
        CAPTURE(line);
        CHECK(("\n" + ended.out).find("\n" + line) != std::string::npos);
    }
    for (const char* ours : {"\nkind=", "\ndata=", "\ncount=", "\nvalue=", "\nOLDPWD="}) {
        CHECK(("\n" + ended.out).find(ours) == std::string::npos);
    }
}

TEST_CASE("attached: a program whose name looks like a variable") {
    const test::temp_dir dir;
    const std::string program = (dir / "a=b").string();
    test::write_file(program, "#!/bin/sh\necho \"$1\"\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    CHECK(run(argv_of({program, "x y"})).out == "x y\n");
}

TEST_CASE("attached: merged output keeps its order") {
    command_spec spec = script_of("echo 1; echo 2 >&2; echo 3; echo 4 >&2");
    CHECK(run(spec).out == "1\n3\n");
    CHECK(run(spec).err == "2\n4\n");
    spec.merge_output = true;
    CHECK(run(spec).out == "1\n2\n3\n4\n");
    CHECK(run(spec).err.empty());
}

TEST_CASE("attached: what Linux cannot pass on is refused before anything runs") {
    const std::string nul("a\0b", 3);
    CHECK(refusal(argv_of({"ls", nul})) == error_name::invalid_params);
    CHECK(refusal(script_of(nul)) == error_name::invalid_params);
    command_spec spec = argv_of({"ls"});
    spec.cwd = nul;
    CHECK(refusal(spec) == error_name::invalid_params);
    for (const std::string& name : {std::string(), std::string("A=B"), std::string("="), nul}) {
        spec = argv_of({"ls"});
        spec.env = {{name, "x"}};
        CHECK(refusal(spec) == error_name::invalid_params);
    }
    spec.env = {{"A", nul}};
    CHECK(refusal(spec) == error_name::invalid_params);

    CHECK(refusal(argv_of({"echo", std::string(max_argument + 1, 'x')})) ==
          error_name::argument_too_long);
    spec = argv_of({"ls"});
    spec.env = {{"A", std::string(max_argument - 1, 'x')}}; // with "A=" one too many
    CHECK(refusal(spec) == error_name::argument_too_long);
}

TEST_CASE("attached: the longest argument the kernel takes is taken") {
    const outcome ended = run(argv_of({"printf", "%s", std::string(max_argument, 'x')}));
    CHECK(ended.code == 0);
    CHECK(ended.out.size() == max_argument);
}

TEST_CASE("kill: nothing of that id is left at once") {
    CHECK(run(kill_command(new_id(), kill_signal::kill)).code == 0);
}

TEST_CASE("kill: the whole tree, wherever its members went, and nothing else") {
    const std::string script =
        "echo \"$BASHPID\"\n"
        "sleep 600 & echo $!\n"
        "setsid sleep 600 & echo $!\n"
        "(trap '' INT TERM HUP; sleep 600) & echo $!\n"
        "env -i sleep 600 & echo $!\n" // of its environment, but still its child
        "echo ready\nwait\n";
    command_spec spec = script_of(script);
    spec.cwd = "/";
    const std::string id = new_id();
    const std::string other_id = id + "-other"; // the id is not taken for a prefix
    process tree(build_attached(spec, id).argv);
    process other(build_attached(spec, other_id).argv);
    tree.read("ready");
    other.read("ready");
    const auto pids = [](const std::string& text) {
        std::istringstream words(text);
        strings found;
        for (std::string word; words >> word && word != "ready";)
            found.push_back(word);
        return found;
    };
    REQUIRE(pids(tree.out).size() == 5);
    CHECK(run(kill_command(id, kill_signal::kill)).code == 0);
    CHECK(tree.wait() == -9);
    for (const std::string& pid : pids(tree.out))
        CHECK_FALSE(lives(pid));
    for (const std::string& pid : pids(other.out))
        CHECK(lives(pid));
    CHECK(run(kill_command(other_id, kill_signal::kill)).code == 0);
    CHECK(other.wait() == -9);
    for (const std::string& pid : pids(other.out))
        CHECK_FALSE(lives(pid));
}

TEST_CASE("kill: a softer signal lets a command end in its own way, and kills what does not") {
    SUBCASE("INT, handled") {
        command_spec spec =
            script_of("trap 'echo bye; exit 9' INT; echo ready; while :; do sleep 0.02; done");
        spec.cwd = "/";
        const std::string id = new_id();
        process running(build_attached(spec, id).argv);
        running.read("ready");
        CHECK(run(kill_command(id, kill_signal::interrupt)).code == 0);
        running.read();
        CHECK(running.wait() == 9);
        CHECK(running.out == "ready\nbye\n");
    }
    SUBCASE("TERM, ignored") {
        command_spec spec = script_of("trap '' TERM; echo ready; while :; do sleep 0.05; done");
        spec.cwd = "/";
        const std::string id = new_id();
        process running(build_attached(spec, id).argv);
        running.read("ready");
        CHECK(run(kill_command(id, kill_signal::terminate)).code == 0);
        CHECK(running.wait() == -9);
    }
}
