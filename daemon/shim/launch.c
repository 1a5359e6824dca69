// Starting the command: pipes, then a vfork-like clone that becomes the command.
//
// The child shares our memory until it has executed: it only uses its own stack, writes the reason
// of a failure into `child`, and never returns to our code. It gets a session of its own, default
// dispositions, an empty signal mask, descriptors 0 to 2 and no others (ours are all close-on-exec,
// inherited ones were closed before).
#include "shim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

struct child {
    const struct order* order;
    int in, out, err;
    const char* path; // the value of PATH
    int error;
    const char* at;
    int cwd_error;
    const char* cwd;
};

static const char* value_of(char** env, const char* name) {
    const size_t n = strlen(name);
    for (; *env; ++env)
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return *env + n + 1;
    return NULL;
}

// execvp() without its shell for files of unknown format: argv is real argv.
static int execute(const char* path, char** argv, char** env) {
    const char* file = argv[0];
    if (*file == '\0') return ENOENT;
    if (strchr(file, '/')) {
        execve(file, argv, env);
        return errno;
    }
    const size_t length = strlen(file);
    int best = ENOENT;
    char candidate[4096];
    for (const char* at = path;; ++at) {
        const char* end = strchr(at, ':');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        if (n + length + 2 <= sizeof candidate) {
            memcpy(candidate, at, n);
            if (n > 0) candidate[n++] = '/'; // an empty element is the current directory
            memcpy(candidate + n, file, length + 1);
            execve(candidate, argv, env);
            if (errno == EACCES)
                best = EACCES;
            else if (errno != ENOENT && errno != ENOTDIR)
                return errno;
        }
        if (!end) return best;
        at = end;
    }
}

static int become_command(void* context) {
    struct child* child = context;
    const struct order* order = child->order;
    setsid();
    // dup2 of a descriptor onto itself would leave it close-on-exec; ours are all above 2.
    if (dup2(child->in, 0) < 0 || dup2(child->out, 1) < 0 || dup2(child->err, 2) < 0) {
        child->at = "dup2";
        child->error = errno;
        return 1;
    }
    struct sigaction standard = {.sa_handler = SIG_DFL};
    for (int number = 1; number < 65; ++number)
        sigaction(number, &standard, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (order->cwd && chdir(order->cwd) != 0) {
        child->cwd_error = errno;
        child->cwd = "/workspace";
        if (chdir(child->cwd) != 0) {
            child->cwd = "/";
            if (chdir(child->cwd) != 0) child->cwd = ".";
        }
    }
    child->error = execute(child->path, order->argv, order->env);
    child->at = "execve";
    return 1;
}

static void close_both(int* pair) {
    for (int i = 0; i < 2; ++i)
        if (pair[i] >= 0) close(pair[i]);
    pair[0] = pair[1] = -1;
}

void launch(const struct order* order, int null_fd, struct launched* result) {
    static _Alignas(64) char stack[64 * 1024];
    int out[2] = {-1, -1}, err[2] = {-1, -1}, in[2] = {-1, -1};
    const bool fed = order->stdin_kind != feed_none;
    *result = (struct launched){.out = -1, .err = -1, .in = -1};
    struct child child = {.order = order, .path = value_of(order->env, "PATH")};
    if (!child.path) child.path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    if (pipe2(out, O_CLOEXEC) != 0 || (!order->merge && pipe2(err, O_CLOEXEC) != 0) ||
        (fed && pipe2(in, O_CLOEXEC) != 0)) {
        result->error = errno;
        result->at = "pipe";
    } else {
        child.in = fed ? in[0] : null_fd;
        child.out = out[1];
        child.err = order->merge ? out[1] : err[1];
        const pid_t pid =
            clone(become_command, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
        if (pid < 0) {
            result->error = errno;
            result->at = "clone";
        } else if (child.error) {
            result->error = child.error;
            result->at = child.at;
            while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
            }
        } else {
            result->pid = pid;
        }
    }
    if (!result->pid) {
        close_both(out);
        close_both(err);
        close_both(in);
        return;
    }
    result->cwd_error = child.cwd_error;
    result->cwd = child.cwd;
    close(out[1]);
    if (err[1] >= 0) close(err[1]);
    if (in[0] >= 0) close(in[0]);
    result->out = out[0];
    result->err = err[0];
    result->in = in[1];
    // Of the ends that only we have: the command's are other open files.
    fcntl(result->out, F_SETFL, O_NONBLOCK);
    if (result->err >= 0) fcntl(result->err, F_SETFL, O_NONBLOCK);
    if (result->in >= 0) fcntl(result->in, F_SETFL, O_NONBLOCK);
}
