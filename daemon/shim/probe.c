// `shim probe`: whether this platform lets the shim do its work. Each ability is tried, not
// guessed.
#include "shim.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int try_sockets(int* peercred, int* passfd) {
    char id[32] = "probe-";
    struct text name = {id, strlen(id), sizeof id - 1};
    put_i64(&name, getpid());
    int listener, client = -1, server = -1;
    int error = wire_listen(id, &listener);
    if (error) return error;
    error = wire_connect(id, &client);
    *peercred = error == EPERM ? EPERM : 0;
    if (!error && (server = accept(listener, NULL, NULL)) < 0) error = errno;
    if (!error && !wire_peer_allowed(server)) *peercred = EPERM;
    if (!error) {
        struct wire head;
        char payload[16];
        size_t n;
        int fd = -1;
        *passfd = wire_send(client, wire_status, NULL, 0, 0, "", 1, 0);
        if (!*passfd) *passfd = wire_receive(server, &head, payload, sizeof payload, &n, &fd);
        if (!*passfd && fd < 0) *passfd = EBADF;
        if (fd >= 0) close(fd);
    }
    if (server >= 0) close(server);
    if (client >= 0) close(client);
    close(listener);
    return error;
}

struct orphan {
    int pipe;
};

static int middle(void* context) {
    const struct orphan* orphan = context;
    const pid_t self = (pid_t)syscall(SYS_getpid);
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != 0) return 0;
    char verdict = setsid() < 0 ? 's' : 'o';
    for (int tries = 0; getppid() == self; ++tries) {
        if (tries == 5000) verdict = 'p';
        if (tries == 5000) break;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    const ssize_t n = write(orphan->pipe, &verdict, 1);
    _exit(n == 1 ? 0 : 1);
}

static int try_orphan(void) {
    static _Alignas(64) char stack[16 * 1024];
    int pipe[2];
    if (pipe2(pipe, O_CLOEXEC) != 0) return errno;
    struct orphan orphan = {pipe[1]};
    const pid_t pid =
        clone(middle, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &orphan);
    int error = pid < 0 ? errno : 0;
    close(pipe[1]);
    if (!error) {
        waitpid(pid, NULL, 0);
        struct pollfd one = {pipe[0], POLLIN, 0};
        char verdict = 0;
        if (poll(&one, 1, 2000) != 1 || read(pipe[0], &verdict, 1) != 1) error = ECHILD;
        if (!error && verdict != 'o') error = verdict == 's' ? EPERM : ESRCH;
    }
    close(pipe[0]);
    return error;
}

static int try_proc(void) {
    struct tree tree = {0};
    // Ourselves, seen as a member of our session.
    const int error = tree_scan(&tree, 0, getsid(0));
    if (error) return error;
    for (size_t i = 0; i < tree.n; ++i)
        if (tree.list[i].pid == getpid()) return 0;
    return ESRCH;
}

static int try_claims(void) {
    char id[32] = "probe-";
    struct text name = {id, strlen(id), sizeof id - 1};
    put_i64(&name, geteuid());
    put_char(&name, '-');
    put_i64(&name, getpid());
    const char* at;
    int error = claims_prepare(&at);
    if (error) return error;
    // So that nobody's `git add -A` takes it in.
    const int ignore = open(SHIM_HOME "/.gitignore", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (ignore >= 0) {
        if (write(ignore, "*\n", 2) != 2) error = errno;
        close(ignore);
    }
    const struct claim claim = {.phase = phase_claimed, .end = {.code = -1, .signal = -1}};
    struct claim back;
    int fd;
    error = claim_create(id, &claim, &fd, &at);
    if (error == EEXIST) {
        // Of a probe that was cut off: numbers of processes come back with every boot.
        claim_remove(id);
        error = claim_create(id, &claim, &fd, &at);
    }
    if (error) return error;
    error = claim_write(fd, &claim);
    if (!error) error = claim_read(id, &back);
    close(fd);
    const int remove_error = claim_remove(id);
    claims_reserve();
    return error ? error : remove_error;
}

void verb_probe(void) {
    hello("probe");
    frame_end();
    int peercred = ENOTCONN, passfd = ENOTCONN;
    const int abstract = try_sockets(&peercred, &passfd);
    const int orphan = try_orphan();
    const int subreaper = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 ? 0 : errno;
    const int proc = try_proc();
    const int claims = try_claims();
    const int memory = memfd_create("probe", MFD_CLOEXEC);
    const int memfd = memory < 0 ? errno : 0;
    const int spool = spool_probe();
    struct utsname names;
    const bool ok = !(abstract || peercred || passfd || orphan || subreaper || proc || claims);
    frame("probe");
    field_u64("ok", ok);
    field_text("kernel", uname(&names) == 0 ? names.release : "-");
    field_u64("pidns", facts_pidns);
    field_u64("abstract", (uint64_t)abstract);
    field_u64("peercred", (uint64_t)peercred);
    field_u64("passfd", (uint64_t)passfd);
    field_u64("orphan", (uint64_t)orphan);
    field_u64("subreaper", (uint64_t)subreaper);
    field_u64("proc", (uint64_t)proc);
    field_u64("claims", (uint64_t)claims);
    field_u64("spool", (uint64_t)spool);
    field_u64("memfd", (uint64_t)memfd);
    frame_end();
    finish(0);
}
