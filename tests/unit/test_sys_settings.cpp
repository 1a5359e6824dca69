// Options, their sources and their precedence; the checks of values, URLs and key files.
#include "sys/file.hpp"
#include "sys/settings.hpp"

#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

using namespace sandboxd;
using namespace sandboxd::sys;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// A home of its own that goes when the test does.
struct scratch {
    fs::path path;
    environment env;

    scratch() {
        char name[] = "/tmp/sandboxd-settings-XXXXXX";
        path = ::mkdtemp(name);
        env.home = path;
    }
    ~scratch() { fs::remove_all(path); }

    void config(const std::string& text) const {
        fs::create_directories(path / ".config/deepinfra-sandboxd");
        std::ofstream(path / ".config/deepinfra-sandboxd/config.ini") << text;
    }
    std::string config_path() const {
        return (path / ".config/deepinfra-sandboxd/config.ini").string();
    }
    fs::path key_file(const std::string& text, mode_t mode) const {
        atomic_write(path / "key", text, mode);
        return path / "key";
    }
    // The text of the error; empty if there is none.
    std::string error(const std::vector<std::string>& arguments = {}) const {
        try {
            load_settings(arguments, env);
            return {};
        } catch (const config_error& error) {
            return error.what();
        }
    }
};

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("settings: without any source there are the defaults of the interface") {
    const scratch here;
    const settings s = load_settings({}, here.env);
    CHECK(s.base_url == "https://api.deepinfra.com");
    CHECK(s.idle_stop == 300s);
    CHECK(s.max_active == 5);
    CHECK(s.server_timeout == 3600s);
    CHECK(s.queue_timeout == 300s);
    CHECK(s.plan.empty());
    CHECK(s.level == log_level::info);
    CHECK(s.api_key.empty());
    CHECK(s.api_key_from == key_source::none);
    CHECK(s.state_dir == here.path / ".local/state/deepinfra-sandboxd");
    CHECK(s.socket == here.path / ".local/state/deepinfra-sandboxd/rpc.sock");
    CHECK(s.notices.empty());
}

TEST_CASE("settings: a flag beats a variable beats the file") {
    scratch here;
    here.config("idle-stop = 10\nqueue-timeout = 20\nplan = small\n# a comment\n; another\n\n");
    here.env.variables["DEEPINFRA_SANDBOXD_IDLE_STOP"] = "11";
    here.env.variables["DEEPINFRA_SANDBOXD_QUEUE_TIMEOUT"] = "21";
    const settings s = load_settings({"--idle-stop", "12"}, here.env);
    CHECK(s.idle_stop == 12s);
    CHECK(s.queue_timeout == 21s);
    CHECK(s.plan == "small");
}

TEST_CASE("settings: the SDK's variables count, ours before them") {
    scratch here;
    here.env.variables["DEEPINFRA_BASE_URL"] = "http://127.0.0.1:8080/";
    here.env.variables["DEEPINFRA_SANDBOX_PLAN"] = "large";
    CHECK(load_settings({}, here.env).base_url == "http://127.0.0.1:8080");
    CHECK(load_settings({}, here.env).plan == "large");
    here.env.variables["DEEPINFRA_SANDBOXD_PLAN"] = "small";
    CHECK(load_settings({}, here.env).plan == "small");
}

TEST_CASE("settings: an empty variable is an unset one, a repeated flag the last one") {
    scratch here;
    here.env.variables["DEEPINFRA_SANDBOXD_IDLE_STOP"] = "";
    CHECK(load_settings({}, here.env).idle_stop == 300s);
    CHECK(load_settings({"--idle-stop=1", "--idle-stop=2"}, here.env).idle_stop == 2s);
}

TEST_CASE("settings: every error names its source") {
    scratch here;
    SUBCASE("flag") {
        CHECK(here.error({"--idle-stop", "soon"}) ==
              "--idle-stop: \"soon\" is not a time; write for example 300, 0.5, 90s, 5m or 1h");
        CHECK(contains(here.error({"--idle-stpo", "1"}), "--idle-stpo"));
        CHECK(contains(here.error({"--idle", "1"}), "--idle"));
        CHECK(contains(here.error({"--idle-stop"}), "--idle-stop"));
        CHECK(contains(here.error({"surplus"}), "surplus"));
        CHECK(contains(here.error({"--api-key", "k"}), "--api-key"));
    }
    SUBCASE("variable") {
        here.env.variables["DEEPINFRA_SANDBOXD_MAX_ACTIVE"] = "0";
        CHECK(here.error() ==
              "DEEPINFRA_SANDBOXD_MAX_ACTIVE: \"0\" is not a number from 1 to 1000");
    }
    SUBCASE("line of the file") {
        here.config("plan = small\n\nlog-level = loud\n");
        CHECK(here.error() == here.config_path() + ":3: log-level: \"loud\" is none of trace, "
                                                   "debug, info, warning, error");
        here.config("plan = small\nidle-stpo = 1\n");
        CHECK(contains(here.error(), here.config_path() + ":2: "));
        CHECK(contains(here.error(), "idle-stpo"));
        here.config("nonsense\n");
        CHECK(contains(here.error(), here.config_path() + ":1: "));
        here.config("[daemon]\n");
        CHECK(contains(here.error(), ":1: sections are not used"));
        here.config("plan = a\nplan = b\n");
        CHECK(contains(here.error(), ":2: plan is already set at " + here.config_path() + ":1"));
        here.config("state-dir = relative\n");
        CHECK(contains(here.error(), ":1: state-dir must be an absolute path"));
    }
    SUBCASE("but never what may be a key") {
        for (const char* line : {"api-key CANARY1", "api-key = CANARY1", "api-key: CANARY1",
                                 "CANARY1", "CANARY1=", "[CANARY1]", "canary= CANARY1"}) {
            CAPTURE(line);
            here.config("plan = small\n" + std::string(line) + "\n");
            const std::string error = here.error();
            CHECK(contains(error, here.config_path() + ":2: "));
            CHECK(!contains(error, "CANARY1"));
        }
        here.config("");
        CHECK(contains(here.error({"--api-key=CANARY1"}), "--api-key'"));
        CHECK(!contains(here.error({"--api-key=CANARY1"}), "CANARY1"));
    }
    SUBCASE("a named file that is not there") {
        CHECK(contains(here.error({"--config", "/nonexistent/x.ini"}), "--config"));
    }
}

TEST_CASE("settings: a variable with our prefix that names no option is noticed") {
    scratch here;
    here.env.variables["DEEPINFRA_SANDBOXD_IDLE_STPO"] = "1";
    const settings s = load_settings({}, here.env);
    REQUIRE(s.notices.size() == 1);
    CHECK(contains(s.notices.front(), "DEEPINFRA_SANDBOXD_IDLE_STPO"));
}

TEST_CASE("settings: idle-stop cannot be zero") {
    scratch here;
    CHECK(contains(here.error({"--idle-stop", "0"}), "more than 0"));
    CHECK(contains(here.error({"--server-timeout", "0.5"}), "1 s"));
}

TEST_CASE("settings: paths") {
    scratch here;
    SUBCASE("the runtime directory's socket") {
        here.env.variables["XDG_RUNTIME_DIR"] = "/run/user/7";
        CHECK(load_settings({}, here.env).socket == "/run/user/7/deepinfra-sandboxd/rpc.sock");
    }
    SUBCASE("a relative XDG variable is ignored") {
        here.env.variables["XDG_RUNTIME_DIR"] = "run";
        here.env.variables["XDG_STATE_HOME"] = "state";
        CHECK(load_settings({}, here.env).state_dir ==
              here.path / ".local/state/deepinfra-sandboxd");
    }
    SUBCASE("~ in the file is the database's home, not $HOME") {
        here.env.variables["HOME"] = "/elsewhere";
        here.config("state-dir = ~/s\n");
        CHECK(load_settings({}, here.env).state_dir == here.path / "s");
    }
    SUBCASE("without a home the state directory must be named") {
        here.env.home.clear();
        CHECK(contains(here.error(), "DEEPINFRA_SANDBOXD_STATE_DIR"));
        CHECK(load_settings({"--state-dir", "/s"}, here.env).state_dir == "/s");
    }
    SUBCASE("107 bytes are the most that a socket's path can have") {
        const std::string longest = "/" + std::string(106, 'x');
        CHECK(load_settings({"--socket", longest}, here.env).socket == longest);
        const std::string error = here.error({"--socket", "/" + std::string(119, 'x')});
        CHECK(contains(error, "120 bytes"));
        CHECK(contains(error, "107"));
    }
}

TEST_CASE("settings: where the API key comes from") {
    scratch here;
    SUBCASE("variable first") {
        here.env.variables["DEEPINFRA_API_KEY"] = "from-env";
        here.env.variables["DEEPINFRA_SANDBOXD_API_KEY_FILE"] =
            here.key_file("from-file", 0600).string();
        const settings s = load_settings({}, here.env);
        CHECK(s.api_key.reveal() == "from-env");
        CHECK(s.api_key_from == key_source::environment);
        CHECK(s.notices.empty());
    }
    SUBCASE("systemd's credential, whatever its mode") {
        here.env.variables["CREDENTIALS_DIRECTORY"] = here.path.string();
        atomic_write(here.path / "deepinfra-api-key", "from-systemd\n", 0440);
        const settings s = load_settings({}, here.env);
        CHECK(s.api_key.reveal() == "from-systemd");
        CHECK(s.api_key_from == key_source::credentials);
    }
    SUBCASE("the named file, without its line break") {
        const fs::path file = here.key_file("from-file\n", 0600);
        const settings s = load_settings({"--api-key-file", file.string()}, here.env);
        CHECK(s.api_key.reveal() == "from-file");
        CHECK(s.api_key_from == key_source::key_file);
    }
    SUBCASE("a named file that is missing is an error") {
        CHECK(contains(here.error({"--api-key-file", "/nonexistent/key"}), "--api-key-file"));
    }
    SUBCASE("the state directory's") {
        atomic_write(here.path / "api-key", "kept", 0600);
        const settings s = load_settings({"--state-dir", here.path.string()}, here.env);
        CHECK(s.api_key.reveal() == "kept");
        CHECK(s.api_key_from == key_source::state_dir);
    }
    SUBCASE("a file that others may read is refused, and told how to close") {
        for (const mode_t mode : {0640, 0604, 0620}) {
            const fs::path file = here.key_file("canary", mode);
            const std::string error = here.error({"--api-key-file", file.string()});
            CHECK(contains(error, "chmod 600 " + file.string()));
            CHECK(!contains(error, "canary"));
        }
    }
    SUBCASE("what cannot be a key is refused without being told") {
        here.env.variables["DEEPINFRA_API_KEY"] = "canary\r\nX-Evil: 1";
        const std::string error = here.error();
        CHECK(contains(error, "DEEPINFRA_API_KEY"));
        CHECK(!contains(error, "canary"));
        CHECK(contains(here.error({"--api-key-file", here.key_file(" \n", 0600).string()}),
                       "DEEPINFRA_API_KEY"));
        here.env.variables.erase("DEEPINFRA_API_KEY");
        CHECK(contains(here.error({"--api-key-file", here.key_file(" \n", 0600).string()}),
                       "no API key"));
    }
}

TEST_CASE("durations") {
    CHECK(parse_duration("300") == 300s);
    CHECK(parse_duration("300s") == 300s);
    CHECK(parse_duration("0.5") == 500ms);
    CHECK(parse_duration(".25s") == 250ms);
    CHECK(parse_duration("5m") == 5min);
    CHECK(parse_duration("1.5h") == 90min);
    CHECK(parse_duration("7d") == 168h);
    CHECK(parse_duration("20ms") == 20ms);
    CHECK(parse_duration("0") == 0s);
    for (const char* wrong : {"", "s", "-1", "+1", "1 s", "1x", "1e3", "nan", "inf", "0x10", "1..2",
                              ".", "5m3s", "99999999999999999999", "11000d"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(parse_duration(wrong), std::invalid_argument);
    }
}

TEST_CASE("base URLs: https, or http for this machine alone") {
    CHECK(check_base_url("https://api.deepinfra.com") == "https://api.deepinfra.com");
    CHECK(check_base_url("https://proxy.example:8443/deep/") == "https://proxy.example:8443/deep");
    CHECK(check_base_url("http://localhost:1") == "http://localhost:1");
    CHECK(check_base_url("http://127.1.2.3:80") == "http://127.1.2.3:80");
    CHECK(check_base_url("http://[::1]:80") == "http://[::1]:80");
    for (const std::string wrong :
         {"", "api.deepinfra.com", "http://api.deepinfra.com", "http://127.0.0.1.evil.example",
          "http://127.evil.example", "http://localhost.evil.example", "ftp://localhost", "https://",
          "https:///x", "https://h?q=1", "https://h#f", "https://h/ x", "http://0.0.0.0",
          "http://10.0.0.1", "http://[::2]"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(check_base_url(wrong), std::invalid_argument);
    }
    try {
        check_base_url("https://user:canary@h");
        FAIL("a password was accepted");
    } catch (const std::invalid_argument& error) {
        CHECK(!contains(error.what(), "canary"));
    }
}

TEST_CASE("client settings: a mistake in the file does not keep status from working") {
    scratch here;
    here.config("idle-stop = soon\n");
    CHECK(load_client_settings({}, {}, here.env).state_dir ==
          here.path / ".local/state/deepinfra-sandboxd");
    here.config("socket = /tmp/s.sock\nidle-stop = soon\n");
    CHECK(load_client_settings({}, {}, here.env).configured_socket == "/tmp/s.sock");
    CHECK(load_client_settings("/flag.sock", {}, here.env).socket == "/flag.sock");
    here.config("unknown = 1\n");
    here.env.variables["DEEPINFRA_SANDBOXD_STATE_DIR"] = "/s";
    CHECK(load_client_settings({}, {}, here.env).state_dir == "/s");
}

TEST_CASE("client settings: where a daemon is looked for") {
    using paths = std::vector<fs::path>;
    scratch here;
    here.env.variables["XDG_RUNTIME_DIR"] = "/run/user/7";
    const fs::path usual = here.path / ".local/state/deepinfra-sandboxd";
    const fs::path runtime = "/run/user/7/deepinfra-sandboxd/rpc.sock";
    fs::create_directories(here.path / "s");
    std::ofstream(here.path / "s/socket") << "/left.sock\n";
    const fs::path named = here.path / "s";
    const auto places = [&](std::optional<fs::path> socket = {},
                            std::optional<fs::path> state_dir = {}) {
        return client_sockets(here.env, load_client_settings(socket, state_dir, here.env));
    };

    SUBCASE("the usual places") {
        CHECK(places() == paths{runtime, usual / "rpc.sock"});
        CHECK(!load_client_settings({}, {}, here.env).state_dir_named);
    }
    SUBCASE("a socket that is named is the only one") {
        CHECK(places("/flag.sock") == paths{"/flag.sock"});
        here.env.variables["DEEPINFRA_SANDBOXD_SOCKET"] = "/variable.sock";
        CHECK(places() == paths{"/variable.sock"});
    }
    SUBCASE("what a named state directory holds goes first") {
        const paths of_it{"/left.sock", named / "rpc.sock", runtime};
        CHECK(places({}, named) == of_it);
        here.env.variables["DEEPINFRA_SANDBOXD_STATE_DIR"] = named;
        CHECK(places() == of_it);
        CHECK(load_client_settings({}, {}, here.env).state_dir_named);
        here.env.variables["DEEPINFRA_SANDBOXD_SOCKET"] = "/variable.sock";
        CHECK(places() == paths{"/variable.sock"});
        CHECK(places({}, named) == of_it); // a flag goes before a variable
    }
    SUBCASE("the configuration file's") {
        here.config("socket = /file.sock\n");
        CHECK(places() == paths{"/file.sock", runtime, usual / "rpc.sock"});
        here.config("state-dir = ~/s\nsocket = /file.sock\n");
        CHECK(places() == paths{"/left.sock", named / "rpc.sock", "/file.sock", runtime});
        CHECK(load_client_settings({}, {}, here.env).state_dir_named);
    }
}

TEST_CASE("help names every option with its default") {
    const std::string help = describe_options();
    for (const char* option :
         {"--base-url", "--socket", "--state-dir", "--idle-stop", "--max-active",
          "--server-timeout", "--queue-timeout", "--plan", "--log-level", "--api-key-file"}) {
        CAPTURE(option);
        CHECK(contains(help, option));
    }
    CHECK(!contains(help, "--api-key "));
}
