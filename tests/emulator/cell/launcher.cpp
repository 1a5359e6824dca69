// Cloning of cells; see launcher.hpp.
#include "cell/launcher.hpp"

#include "cell/init.hpp"

#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

namespace emulator::cell {

namespace {

pid_t clone_init(bool user_namespace, int& pidfd) {
    clone_args args{};
    args.flags =
        CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_PIDFD;
    if (user_namespace) args.flags |= CLONE_NEWUSER;
    args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
    args.exit_signal = SIGCHLD;
    return static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
}

void launch_one(int socket, const launch_order& how, unique_fd control) {
    const unsigned uid = ::geteuid(), gid = ::getegid();
    bool privileged = uid == 0;
    int pidfd = -1;
    pid_t pid = clone_init(!privileged, pidfd);
    if (pid < 0 && errno == EPERM && privileged) { // a root without power, as in a container
        privileged = false;
        pid = clone_init(true, pidfd);
    }
    if (pid == 0) {
        ::close(socket);
        run_init(control.release(), how, privileged, uid, gid);
    }
    launch_reply reply{how.cookie, pid > 0 ? pid : 0, pid > 0 ? 0 : errno};
    unique_fd owned(pid > 0 ? pidfd : -1);
    send_message(socket, &reply, sizeof reply,
                 owned ? std::vector<int>{owned.get()} : std::vector<int>{});
}

void rename_process(int argc, char** argv) {
    const std::size_t room = std::strlen(argv[0]);
    for (int i = 0; i < argc; ++i)
        std::memset(argv[i], 0, std::strlen(argv[i]));
    std::memcpy(argv[0], "init", std::min<std::size_t>(room, 4));
}

[[noreturn]] void run_launcher(int socket, pid_t emulator) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != emulator) ::_exit(0);
    ::prctl(PR_SET_NAME, "launcher");
    ::setsid();                 // a Ctrl-C is for the emulator, which then ends us
    ::signal(SIGCHLD, SIG_IGN); // reaped by the kernel; pidfds tell of the end
    for (;;) {
        launch_order how{};
        std::vector<unique_fd> fds;
        if (receive_message(socket, &how, sizeof how, fds) != sizeof how || fds.size() != 1)
            ::_exit(0);
        launch_one(socket, how, std::move(fds[0]));
    }
}

} // namespace

unique_fd fork_launcher(int argc, char** argv) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        throw std::system_error(errno, std::generic_category(), "socketpair");
    unique_fd ours(pair[0]), theirs(pair[1]);
    const pid_t self = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid == 0) {
        ours.reset();
        rename_process(argc, argv);
        run_launcher(theirs.release(), self);
    }
    return ours;
}

launcher::launcher(const boost::asio::any_io_executor& executor, unique_fd socket)
    : socket_(executor, socket.release()) {}

task<launcher::birth> launcher::launch(launch_order how, unique_fd control) {
    how.cookie = next_cookie_++;
    auto waiting = std::make_shared<pending>(socket_.get_executor());
    pending_[how.cookie] = waiting;
    if (!send_message(socket_.native_handle(), &how, sizeof how, {control.get()})) {
        pending_.erase(how.cookie);
        waiting->result.error = errno;
        co_return std::move(waiting->result);
    }
    control.reset();
    while (!waiting->done)
        co_await waiting->answered.wait();
    co_return std::move(waiting->result);
}

task<void> launcher::run() {
    for (;;) {
        co_await socket_.async_wait(socket_.wait_read, boost::asio::use_awaitable);
        launch_reply reply{};
        std::vector<unique_fd> fds;
        if (receive_message(socket_.native_handle(), &reply, sizeof reply, fds) != sizeof reply)
            co_return;
        const auto found = pending_.find(reply.cookie);
        if (found == pending_.end()) continue;
        found->second->result.pid = reply.pid;
        found->second->result.error = reply.error;
        if (!fds.empty()) found->second->result.pidfd = std::move(fds[0]);
        found->second->done = true;
        found->second->answered.notify();
        pending_.erase(found);
    }
}

} // namespace emulator::cell
