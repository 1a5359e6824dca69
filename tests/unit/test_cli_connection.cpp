// The client's side of the socket against a scripted other end: diagnosis of every way not to be
// served.
#include "cli/connection.hpp"
#include "cli/failure.hpp"
#include "sys/fd.hpp"
#include "sys/listener.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

using namespace sandboxd;
using namespace sandboxd::cli;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// Accepts one connection, in a thread of its own, and plays a script with it.
class other_end {
public:
    class line_socket {
    public:
        explicit line_socket(sys::unique_fd fd) : fd_(std::move(fd)) {}
        json::object read() {
            std::string line;
            char c = 0;
            while (::recv(fd_.get(), &c, 1, 0) == 1 && c != '\n')
                line += c;
            return line.empty() ? json::object() : json::parse(line).as_object();
        }
        void write(const std::string& text) {
            (void)!::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
        }
        void answer(const json::object& request, const json::object& result) {
            write(json::serialize(json::object{
                      {"jsonrpc", "2.0"}, {"id", request.at("id")}, {"result", result}}) +
                  "\n");
        }
        void greet() {
            const json::object hello = read();
            CHECK(hello.at("method") == "hello");
            answer(hello, {{"protocol", 1}, {"version", "0.1.0"}});
        }

    private:
        sys::unique_fd fd_;
    };

    explicit other_end(std::function<void(line_socket&)> script) {
        char name[] = "/tmp/sandboxd-cli-XXXXXX";
        directory_ = ::mkdtemp(name);
        listener_ = std::make_unique<sys::listener>(sys::listener::open(socket(), directory_));
        fd_ = sys::unique_fd(listener_->release_fd());
        thread_ = std::thread([this, script = std::move(script)] {
            pollfd waiting{fd_.get(), POLLIN, 0};
            ::poll(&waiting, 1, 10000);
            line_socket client(
                sys::unique_fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
            script(client);
        });
    }
    ~other_end() {
        thread_.join();
        listener_.reset();
        fs::remove_all(directory_);
    }

    fs::path socket() const { return directory_ / "rpc.sock"; }

private:
    fs::path directory_;
    std::unique_ptr<sys::listener> listener_;
    sys::unique_fd fd_;
    std::thread thread_;
};

// The failure that `act` throws.
template <class F>
failure failure_of(F&& act) {
    try {
        act();
    } catch (const failure& why) {
        return why;
    }
    return failure(exit_code::ok, "nothing was thrown");
}

} // namespace

TEST_CASE("connection: a call and its answer, notifications in between") {
    other_end daemon([](other_end::line_socket& client) {
        client.greet();
        const json::object request = client.read();
        CHECK(request.at("method") == "sandbox.start");
        CHECK(request.at("params").at("id") == "sb_1");
        client.write(
            "{\"jsonrpc\":\"2.0\",\"method\":\"sandbox.progress\",\"params\":{\"text\":\"t\"}}\n");
        client.write("{\"jsonrpc\":\"2.0\",\"id\":999,\"result\":{\"not\":\"ours\"}}\n");
        client.answer(request, {{"fine", true}});
        client.read(); // until we leave
    });
    connection client = connection::open({"/nonexistent/s", daemon.socket()});
    CHECK(client.socket() == daemon.socket());
    std::string news;
    client.on_notification = [&](std::string_view method, const json::object& params) {
        news = std::string(method) + " " + std::string(text_of(params, "text"));
    };
    CHECK(flag_of(client.call("sandbox.start", {{"id", "sb_1"}}), "fine"));
    CHECK(news == "sandbox.progress t");
}

TEST_CASE("connection: the bytes behind the line of an exec.output, however they arrive") {
    const std::string bytes = "\n{\"jsonrpc\":\"2.0\"}\n" + std::string("\0\xff", 2);
    const std::string sent = R"({"jsonrpc":"2.0","method":"exec.output","params":{"pos":0,"raw":)" +
                             std::to_string(bytes.size()) + "}}\n" + bytes +
                             R"({"jsonrpc":"2.0","method":"last"})" + "\n";
    for (std::size_t cut = 0; cut <= sent.size(); ++cut) {
        CAPTURE(cut);
        other_end daemon([&](other_end::line_socket& client) {
            client.greet();
            client.write(sent.substr(0, cut));
            client.read(); // until the first part has been looked at
            client.write(sent.substr(cut));
            client.read();
        });
        connection client = connection::open({daemon.socket()});
        std::string seen;
        const auto look = [&] {
            while (const auto message = client.next()) {
                seen += client.raw();
                if (text_of(*message, "method") == "last") seen += "last";
            }
        };
        look(); // what came together with the greeting
        client.notify("go.on", {});
        while (!seen.ends_with("last")) {
            pollfd waiting{client.fd(), POLLIN, 0};
            REQUIRE(::poll(&waiting, 1, 5000) == 1);
            client.receive();
            look();
        }
        REQUIRE(seen == bytes + "last");
    }
}

TEST_CASE("connection: output of no possible size") {
    for (const char* size : {"-1", "1048577"}) {
        other_end daemon([&](other_end::line_socket& client) {
            client.greet();
            client.write(R"({"jsonrpc":"2.0","method":"exec.output","params":{"raw":)" +
                         std::string(size) + "}}\n");
            client.read();
        });
        connection client = connection::open({daemon.socket()});
        CHECK(failure_of([&] { client.call("daemon.ping", {}); }).code() ==
              exit_code::unresponsive);
    }
}

TEST_CASE("connection: nobody listens") {
    const failure why = failure_of([] { connection::open({"/nonexistent/a", "/nonexistent/b"}); });
    CHECK(why.code() == exit_code::not_running);
    CHECK(std::string(why.what()) ==
          "the daemon is not running (nobody listens on /nonexistent/a, /nonexistent/b)");
    CHECK(why.hint().find("systemctl --user start deepinfra-sandboxd.socket") != std::string::npos);
}

TEST_CASE("connection: accepted and never answered is unresponsive, within the patience") {
    other_end daemon([](other_end::line_socket& client) {
        client.read();
        client.read(); // until the other side gives up
    });
    const auto begin = connection::clock::now();
    const failure why = failure_of([&] { connection::open({daemon.socket()}, 200ms); });
    CHECK(why.code() == exit_code::unresponsive);
    CHECK(connection::clock::now() - begin < 3s);
}

TEST_CASE("connection: another protocol, gibberish and a closed door are told apart from silence") {
    const auto greeted_with = [](const std::string& text) {
        other_end daemon([&](other_end::line_socket& client) {
            client.read();
            client.write(text);
        });
        return failure_of([&] { connection::open({daemon.socket()}); });
    };
    const failure incompatible =
        greeted_with(R"({"jsonrpc":"2.0","id":1,"error":{"code":1002,"message":"too old","data":)"
                     R"({"name":"incompatible_protocol","retryable":false,"hint":"upgrade"}}})"
                     "\n");
    CHECK(incompatible.code() == exit_code::unresponsive);
    CHECK(std::string(incompatible.what()) == "too old");
    CHECK(incompatible.hint() == "upgrade");
    CHECK(std::string(greeted_with("SSH-2.0-x\n").what()).find("does not speak") !=
          std::string::npos);
    CHECK(greeted_with(R"({"jsonrpc":"2.0","id":1,"result":{"protocol":2}})"
                       "\n")
              .code() == exit_code::unresponsive);
    const failure closed = greeted_with("");
    CHECK(closed.code() == exit_code::unresponsive);
    CHECK(std::string(closed.what()).find("closed the connection") != std::string::npos);
}

TEST_CASE("connection: an error answer keeps its text, hint and name") {
    other_end daemon([](other_end::line_socket& client) {
        client.greet();
        client.read();
        client.write(R"({"jsonrpc":"2.0","id":2,"error":{"code":3003,"message":"2 commands run",)"
                     R"("data":{"name":"sandbox_busy","retryable":false,"hint":"--force"}}})"
                     "\n");
    });
    connection client = connection::open({daemon.socket()});
    const failure why = failure_of([&] { client.call("sandbox.stop", {}); });
    CHECK(why.code() == exit_code::error);
    CHECK(std::string(why.what()) == "2 commands run");
    CHECK(why.hint() == "--force");
    CHECK(why.name() == "sandbox_busy");
}

TEST_CASE("connection: long work is not a hung daemon, as long as it gives signs of life") {
    other_end daemon([](other_end::line_socket& client) {
        client.greet();
        const json::object request = client.read();
        const json::object ping = client.read();
        CHECK(ping.at("method") == "daemon.ping");
        client.answer(ping, {});
        client.answer(request, {{"done", true}});
        client.read();
    });
    connection client = connection::open({daemon.socket()});
    CHECK(flag_of(client.call("sandbox.start", {}), "done"));
}

TEST_CASE("connection: a daemon that hangs in a call is unresponsive") {
    other_end daemon([](other_end::line_socket& client) {
        client.greet();
        while (!client.read().empty()) {
        }
    });
    connection client = connection::open({daemon.socket()});
    CHECK(failure_of([&] { client.call("daemon.status", {}); }).code() == exit_code::unresponsive);
}

TEST_CASE("connection: a request that cannot be sent is refused before it is") {
    other_end daemon([](other_end::line_socket& client) {
        client.greet();
        CHECK(client.read().at("method") == "daemon.ping");
    });
    connection client = connection::open({daemon.socket()});
    const failure why = failure_of([&] {
        client.send("exec.start", {{"x", std::string(connection::longest_line, 'x')}});
    });
    CHECK(std::string(why.what()).find("at most 1048576") != std::string::npos);
    client.send("daemon.ping", {});
}

TEST_CASE("connection: an answer of any size and in any pieces") {
    const std::string big(3 << 18, 'x');
    other_end daemon([&](other_end::line_socket& client) {
        client.greet();
        const json::object request = client.read();
        const std::string line =
            json::serialize(json::object{{"id", request.at("id")}, {"result", {{"x", big}}}}) +
            "\n";
        client.write(line.substr(0, 1));
        client.write(line.substr(1, 100000));
        client.write(line.substr(100001));
    });
    connection client = connection::open({daemon.socket()});
    CHECK(text_of(client.call("x", {}), "x").size() == big.size());
}
