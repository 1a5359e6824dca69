// The parts of sys/ that meet the operating system: files, lock, listening socket, peers,
// notifications.
#include "sys/file.hpp"
#include "sys/listener.hpp"
#include "sys/lock.hpp"
#include "sys/memory.hpp"
#include "sys/notify.hpp"
#include "sys/peer.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>

using namespace sandboxd::sys;
namespace fs = std::filesystem;

namespace {

struct scratch {
    fs::path path;
    scratch() {
        char name[] = "/tmp/sandboxd-system-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~scratch() { fs::remove_all(path); }
};

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

template <class F>
std::string error_of(F&& act) {
    try {
        act();
        return {};
    } catch (const std::exception& error) {
        return error.what();
    }
}

mode_t mode_of(const fs::path& file) {
    struct stat status {};
    REQUIRE(::lstat(file.c_str(), &status) == 0);
    return status.st_mode & 07777;
}

sockaddr_un address_of(const fs::path& socket) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket.c_str(), sizeof address.sun_path - 1);
    return address;
}

int connect_to(const fs::path& socket) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(socket);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        ::close(fd);
        return -1;
    }
    return fd;
}

// Leaves behind the file of a daemon that was killed.
void leave_stale_socket(const fs::path& socket) {
    const unique_fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(socket);
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(fd.get(), 1) == 0);
}

} // namespace

TEST_CASE("atomic_write replaces the whole file with the mode asked for") {
    const scratch here;
    const fs::path file = here.path / "state.json";
    const mode_t before = ::umask(0);
    atomic_write(file, "one");
    CHECK(mode_of(file) == 0600);
    atomic_write(file, "two", 0640);
    ::umask(before);
    CHECK(mode_of(file) == 0640);
    CHECK(read_file(file) == "two");
    CHECK(!fs::exists(file.string() + ".tmp"));
}

TEST_CASE("atomic_write does not write through a link left at its temporary name") {
    const scratch here;
    atomic_write(here.path / "victim", "intact");
    fs::create_symlink(here.path / "victim", here.path / "f.tmp");
    atomic_write(here.path / "f", "new");
    CHECK(read_file(here.path / "victim") == "intact");
    CHECK(read_file(here.path / "f") == "new");
}

TEST_CASE("atomic_write that fails leaves the old content and no litter") {
    const scratch here;
    fs::create_directory(here.path / "f"); // a rename onto a directory is refused
    CHECK(contains(error_of([&] { atomic_write(here.path / "f", "x"); }), "cannot replace"));
    CHECK(!fs::exists(here.path / "f.tmp"));
}

TEST_CASE("read_file") {
    const scratch here;
    CHECK(!read_file(here.path / "none"));
    atomic_write(here.path / "f", std::string(100, 'x'));
    CHECK(read_file(here.path / "f", 100)->size() == 100);
    CHECK_THROWS_AS(read_file(here.path / "f", 99), std::system_error);
    REQUIRE(::mkfifo((here.path / "pipe").c_str(), 0600) == 0);
    CHECK(contains(error_of([&] { read_file(here.path / "pipe"); }), "not a regular file"));
}

TEST_CASE("private directories are made 0700, and refused when open to others") {
    const scratch here;
    for (const mode_t umask : {0777, 0177, 0}) {
        fs::remove_all(here.path / "a");
        const mode_t before = ::umask(umask);
        ensure_private_directory(here.path / "a/b/c");
        ::umask(before);
        CHECK(mode_of(here.path / "a") == 0700);
        CHECK(mode_of(here.path / "a/b/c") == 0700);
    }
    REQUIRE(::chmod((here.path / "a/b").c_str(), 0750) == 0);
    const std::string error = error_of([&] { ensure_private_directory(here.path / "a/b"); });
    CHECK(contains(error, "mode 0750"));
    CHECK(contains(error, "chmod 700 " + (here.path / "a/b").string()));
    REQUIRE(::chmod((here.path / "a/b").c_str(), 01777) == 0); // as /tmp is, and must stay
    const std::string shared = error_of([&] { ensure_private_directory(here.path / "a/b"); });
    CHECK(!contains(shared, "chmod"));
    CHECK(contains(shared, (here.path / "a/b/deepinfra-sandboxd").string()));
    atomic_write(here.path / "file", "");
    CHECK(!error_of([&] { ensure_private_directory(here.path / "file"); }).empty());
}

TEST_CASE("the lock: one owner, named to the others, free when it ends") {
    const scratch here;
    {
        const instance_lock owner(here.path / "state");
        CHECK(mode_of(here.path / "state") == 0700);
        CHECK(mode_of(here.path / "state/lock") == 0600);
        try {
            const instance_lock second(here.path / "state");
            FAIL("two owners");
        } catch (const already_running& error) {
            CHECK(error.pid() == ::getpid());
            CHECK(std::string(error.what()) == "another daemon (pid " + std::to_string(::getpid()) +
                                                   ") owns " + (here.path / "state").string());
        }
    }
    const instance_lock next(here.path / "state");
}

TEST_CASE("the lock goes with a killed process") {
    const scratch here;
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const instance_lock owner(here.path);
        (void)!::write(ready[1], "x", 1);
        ::pause();
        ::_exit(0);
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    CHECK_THROWS_AS(instance_lock{here.path}, already_running);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CHECK_NOTHROW(instance_lock{here.path});
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST_CASE("the listener: modes, address file, removal") {
    const scratch here;
    const fs::path socket = here.path / "run/rpc.sock";
    {
        const mode_t before = ::umask(0);
        listener listening = listener::open(socket, here.path);
        ::umask(before);
        CHECK(!listening.from_systemd());
        CHECK(listening.path() == socket);
        CHECK(mode_of(socket) == 0600);
        CHECK(mode_of(here.path / "run") == 0700);
        CHECK(read_file(here.path / "socket") == socket.string() + "\n");
        const unique_fd fd(listening.release_fd());
        CHECK((::fcntl(fd.get(), F_GETFL) & O_NONBLOCK) != 0);
        CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
        const unique_fd client(connect_to(socket));
        CHECK(client.get() >= 0);
    }
    CHECK(!fs::exists(socket));
}

TEST_CASE("the listener: it serves also where its address cannot be written down") {
    const scratch here;
    const fs::path socket = here.path / "rpc.sock";
    fs::create_directory(here.path / "socket.tmp"); // stands in the way
    {
        const listener listening = listener::open(socket, here.path);
        CHECK(contains(listening.trouble(), "socket.tmp"));
        const unique_fd client(connect_to(socket));
        CHECK(client.get() >= 0);
    }
    std::ofstream(here.path / "socket") << socket.string() << "\n";
    CHECK(listener::open(socket, here.path).trouble().empty()); // nothing is to be written
}

TEST_CASE("the listener: a stale socket is replaced") {
    const scratch here;
    const fs::path socket = here.path / "rpc.sock";
    leave_stale_socket(socket);
    const listener listening = listener::open(socket, here.path);
    const unique_fd client(connect_to(socket));
    CHECK(client.get() >= 0);
}

TEST_CASE("the listener: a live socket is never replaced, even with a full backlog") {
    const scratch here;
    const fs::path socket = here.path / "rpc.sock";
    const unique_fd busy(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(socket);
    REQUIRE(::bind(busy.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(busy.get(), 0) == 0);
    const std::string first = error_of([&] { listener::open(socket, here.path); });
    CHECK(contains(first, "another program listens"));
    // The first attempt's connection still fills the backlog: no answer but "try again".
    const std::string second = error_of([&] { listener::open(socket, here.path); });
    CHECK(contains(second, "another program listens"));
    CHECK(fs::is_socket(socket));
}

TEST_CASE("the listener: a file that is no socket, or a directory open to others, is refused") {
    const scratch here;
    atomic_write(here.path / "rpc.sock", "precious");
    CHECK(contains(error_of([&] { listener::open(here.path / "rpc.sock", here.path); }),
                   "is not a socket"));
    CHECK(read_file(here.path / "rpc.sock") == "precious");
    fs::create_directory(here.path / "open");
    REQUIRE(::chmod((here.path / "open").c_str(), 0777) == 0);
    CHECK(contains(error_of([&] { listener::open(here.path / "open/rpc.sock", here.path); }),
                   "open to others"));
}

TEST_CASE("the listener: a successor's socket stays") {
    const scratch here;
    const fs::path socket = here.path / "rpc.sock";
    {
        const listener listening = listener::open(socket, here.path);
        fs::remove(socket);
        leave_stale_socket(socket);
    }
    CHECK(fs::is_socket(socket));
}

TEST_CASE("the listener: systemd's variables for another process are not ours") {
    const scratch here;
    ::setenv("LISTEN_PID", "1", 1);
    ::setenv("LISTEN_FDS", "1", 1);
    const listener listening = listener::open(here.path / "rpc.sock", here.path);
    CHECK(!listening.from_systemd());
    CHECK(std::getenv("LISTEN_FDS") == nullptr);
}

TEST_CASE("ten daemons at once: one owner of lock and socket") {
    const scratch here;
    leave_stale_socket(here.path / "rpc.sock");
    int go[2];
    int done[2];
    REQUIRE(::pipe(go) == 0);
    REQUIRE(::pipe(done) == 0);
    std::vector<pid_t> children;
    for (int i = 0; i < 10; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            char byte = 0;
            ::close(go[1]);
            (void)!::read(go[0], &byte, 1); // end of file: all at once
            char result = 'l';
            try {
                // Each has a state directory of its own: only the socket is fought for.
                const fs::path state = here.path / std::to_string(i);
                const instance_lock lock(state);
                const listener listening = listener::open(here.path / "rpc.sock", state);
                (void)!::write(done[1], "w", 1);
                ::pause();
            } catch (const std::exception&) {
                (void)!::write(done[1], &result, 1);
            }
            ::_exit(0);
        }
        children.push_back(child);
    }
    ::close(go[0]);
    ::close(go[1]);
    int winners = 0;
    for (int i = 0; i < 10; ++i) {
        char byte = 0;
        REQUIRE(::read(done[0], &byte, 1) == 1);
        winners += byte == 'w';
    }
    CHECK(winners == 1);
    const unique_fd client(connect_to(here.path / "rpc.sock"));
    CHECK(client.get() >= 0);
    for (const pid_t child : children) {
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
    }
    ::close(done[0]);
    ::close(done[1]);
}

TEST_CASE("notifications reach a named and an abstract socket") {
    const scratch here;
    for (const bool abstract : {false, true}) {
        CAPTURE(abstract);
        const fs::path path = here.path / "notify";
        sockaddr_un address = address_of(path);
        if (abstract) address.sun_path[0] = '\0';
        const auto size =
            static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.native().size());
        const unique_fd manager(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        REQUIRE(::bind(manager.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
        std::string name = path.string();
        if (abstract) name[0] = '@';
        const auto received = [&] {
            char text[256];
            const ssize_t n = ::recv(manager.get(), text, sizeof text, MSG_DONTWAIT);
            return std::string(text, n > 0 ? static_cast<std::size_t>(n) : 0);
        };

        ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
        const notifier notify = notifier::from_environment();
        CHECK(std::getenv("NOTIFY_SOCKET") == nullptr);
        notify.ready("2 sandboxes");
        CHECK(received() == "READY=1\nSTATUS=2 sandboxes");
        notify.status("a\nREADY=0");
        CHECK(received() == "STATUS=a READY=0");
        notify.stopping("bye");
        CHECK(received() == "STOPPING=1\nSTATUS=bye");
    }
    CHECK_NOTHROW(notifier("").ready("nobody listens"));
    CHECK_NOTHROW(notifier("/nonexistent/socket").ready("nobody listens"));
}

TEST_CASE("memory: code and constants are let go of, and come back") {
    const auto resident = [] { // KiB of files
        std::ifstream status("/proc/self/status");
        std::string name;
        long kib = 0;
        while (status >> name && name != "RssFile:") {
        }
        status >> kib;
        return kib;
    };
    static const std::string changed =
        "a constant made at the start"; // in a page that is written to
    const long before = resident();
    give_back_memory();
    const long after = resident();
    CHECK(after < before / 2);
    CHECK(changed == "a constant made at the start");
    CHECK_THROWS_AS(throw std::system_error(EIO, std::generic_category()), std::system_error);
}

TEST_CASE("peer: who connected, and does it still live") {
    const scratch here;
    const fs::path socket = here.path / "s";
    listener listening = listener::open(socket, here.path);
    const unique_fd server(listening.release_fd());
    int hold[2];
    REQUIRE(::pipe(hold) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const int fd = connect_to(socket);
        char byte = 0;
        (void)!::write(hold[1], "x", 1);
        (void)!::read(fd, &byte, 1);
        ::pause();
        ::_exit(0);
    }
    char byte = 0;
    REQUIRE(::read(hold[0], &byte, 1) == 1);
    const unique_fd connection(::accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const peer_credentials peer = peer_of(connection.get());
    CHECK(peer.uid == ::geteuid());
    CHECK(is_own_user(peer));
    CHECK(peer.process.pid == child);
    CHECK(peer.process.start_time > 0);
    CHECK(alive(peer.process));
    CHECK(!alive({child, peer.process.start_time + 1})); // another process under the same pid
    CHECK(contains(describe(peer.process), "(pid " + std::to_string(child) + ")"));

    ::kill(child, SIGKILL);
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
    CHECK(!alive(peer.process)); // a zombie
    ::waitpid(child, nullptr, 0);
    CHECK(!alive(peer.process));
    CHECK(!alive({}));
    CHECK(describe({0, 0}) == "pid 0");
    CHECK_THROWS_AS(peer_of(hold[0]), std::system_error);
    ::close(hold[0]);
    ::close(hold[1]);
}

TEST_CASE("peer: a process whose main thread has ended lives on in the others") {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        std::thread([&] {
            // Written once the main thread is a zombie, which only /proc can tell.
            for (;;) {
                const auto stat = read_file("/proc/" + std::to_string(::getpid()) + "/stat");
                if (stat && parse_stat(*stat)->state == 'Z') break;
                ::usleep(1000);
            }
            (void)!::write(ready[1], "x", 1);
            ::pause();
        }).detach();
        ::syscall(SYS_exit, 0); // this thread only
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    const auto stat = parse_stat(*read_file("/proc/" + std::to_string(child) + "/stat"));
    REQUIRE(stat);
    CHECK(stat->state == 'Z');
    CHECK(alive({child, stat->start_time}));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST_CASE("peer: /proc/<pid>/stat with a name made to confuse") {
    const std::string rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4711 20 21\n";
    for (const char* name : {"(sh)", "(a b)", "() R 1)", "(\n) (x)"}) {
        CAPTURE(name);
        const auto stat = parse_stat("77 " + std::string(name) + rest);
        REQUIRE(stat);
        CHECK(stat->state == 'S');
        CHECK(stat->threads == 1);
        CHECK(stat->start_time == 4711);
    }
    CHECK(!parse_stat(""));
    CHECK(!parse_stat("77 (sh) S 1 2 3"));
    CHECK(!parse_stat("77 sh S"));
    CHECK(!parse_stat("77 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 x"));
}
