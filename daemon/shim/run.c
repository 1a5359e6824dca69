// `shim run`: makes the runner and stays as its follower.
//
// The runner must outlive this process, its process group and, where that is possible at all, a
// platform that ends the whole tree of a dropped call: so it is the child of a middle process that
// has exited, and claims nothing before it has another parent. The middle process shares our memory
// (a fork costs several times as much); the runner has its own.
#include "run.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct birth {
    const struct order* order;
    int runners_end, followers_end;
    volatile int error;
};

static void keep_only(int fd) {
    // Whatever the platform left open in us is none of the command's business.
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (syscall(SYS_close_range, (unsigned)fd + 1, ~0u, 0u) == 0) {
        if (fd > 3) syscall(SYS_close_range, 3u, (unsigned)fd - 1, 0u);
        return;
    }
    for (int other = 3; other < 1024; ++other)
        if (other != fd) close(other);
}

static _Noreturn void become_runner(const struct birth* birth, pid_t middle) {
    setsid();
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd)
        if (null >= 0 && null != fd) dup2(null, fd);
    if (null > 2) close(null);
    keep_only(birth->runners_end);
    for (int tries = 0; getppid() == middle; ++tries)
        if (tries < 1000)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, 1000000}, NULL);
    runner(birth->order, birth->runners_end);
}

static int middle(void* context) {
    struct birth* birth = context;
    const pid_t self = (pid_t)syscall(SYS_getpid);
    const long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) become_runner(birth, self);
    if (pid < 0) birth->error = errno;
    return 0;
}

// Acknowledged claims go back into the reserve. Where a new one may need it, that has to be first;
// everywhere else the command is not kept waiting for it (follow.c tells of it, and does it again).
static void make_room(const struct follow_options* how) {
    struct statvfs disk;
    if (how->ack_count == 0 || statvfs(SHIM_CLAIMS, &disk) != 0) return;
    if (disk.f_bavail > 16 && disk.f_favail > 16) return;
    bool gone;
    for (unsigned i = 0; i < how->ack_count; ++i)
        acknowledge(how->acks[i], 0, true, &gone);
}

void run(const struct order* order, struct follow_options* how) {
    static _Alignas(64) char stack[64 * 1024];
    int pair[2];
    // Descriptors 0 to 2 are stdio for both, even where the platform closed them.
    while (fcntl(2, F_GETFD) < 0 || fcntl(1, F_GETFD) < 0 || fcntl(0, F_GETFD) < 0)
        if (open("/dev/null", O_RDWR) > 2) break;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        hello("run");
        frame_end();
        fail("spawn_failed", errno, "socketpair", true);
    }
    make_room(how);
    struct birth birth = {order, pair[1], pair[0], 0};
    const pid_t pid = clone(middle, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &birth);
    if (pid < 0) birth.error = errno;
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    if (birth.error) {
        hello("run");
        frame_end();
        fail("spawn_failed", birth.error, "clone", true);
    }
    close(pair[1]);
    follow(how, pair[0], true);
}
