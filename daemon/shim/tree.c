// The processes that descend from the runner, and ending them.
//
// The runner is a child subreaper, so everything its command ever started, whatever sessions and
// parents it gave itself, is below it; and where waitid() says that it has no child, nothing is
// left at all. A scan of /proc is not atomic: one that finds something is true, one that finds
// nothing must be repeated by whoever depends on it.
#include "shim.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct entry { // struct linux_dirent64
    uint64_t inode, offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

// Calls visit for each name that is a number. 0 or errno.
static int each_number(int directory, void (*visit)(void*, pid_t), void* context) {
    _Alignas(struct entry) char block[8192];
    for (;;) {
        const long n = syscall(SYS_getdents64, directory, block, sizeof block);
        if (n < 0) return errno;
        if (n == 0) return 0;
        for (long at = 0; at < n;) {
            const struct entry* e = (const struct entry*)(block + at);
            at += e->length;
            uint64_t number;
            if (parse_u64(e->name, &number)) visit(context, (pid_t)number);
        }
    }
}

struct scan {
    struct tree* tree;
    int proc;
    int error;
};

static bool read_stat(int proc, const char* path, struct process* p, uint64_t* threads) {
    char stat[1024];
    const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t n = read(fd, stat, sizeof stat - 1);
    close(fd);
    if (n <= 0) return false;
    stat[n] = '\0';
    const char* at = strrchr(stat, ')'); // the name may hold anything
    if (!at || at[1] != ' ') return false;
    at += 2;
    p->state = *at;
    for (int number = 3; number <= 22; ++number) {
        const char* word = at;
        uint64_t value = 0;
        for (; *at && *at != ' '; ++at)
            if (*at >= '0' && *at <= '9') value = value * 10 + (uint64_t)(*at - '0');
        if (number == 4) p->parent = (pid_t)value;
        if (number == 6) p->session = (pid_t)value;
        if (number == 20) *threads = value;
        if (number == 22) p->start = value;
        if (*at == ' ') ++at;
        if (at == word) return false;
    }
    return true;
}

static void path_of(char* to, size_t room, pid_t pid, const char* rest, pid_t thread,
                    const char* last) {
    struct text path = {to, 0, room - 1};
    put_i64(&path, pid);
    put(&path, rest);
    if (thread) put_i64(&path, thread);
    put(&path, last);
    to[path.n] = '\0';
}

static void add(void* context, pid_t pid) {
    struct scan* scan = context;
    struct tree* tree = scan->tree;
    if (tree->n == tree->room) {
        const size_t room = tree->room ? tree->room * 2 : 512;
        void* more = mmap(NULL, room * sizeof *tree->list, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) {
            scan->error = ENOMEM;
            return;
        }
        if (tree->n) {
            memcpy(more, tree->list, tree->n * sizeof *tree->list);
            munmap(tree->list, tree->room * sizeof *tree->list);
        }
        tree->list = more;
        tree->room = room;
    }
    char path[48];
    path_of(path, sizeof path, pid, "", 0, "/stat");
    struct process p = {.pid = pid};
    uint64_t threads = 0;
    if (!read_stat(scan->proc, path, &p, &threads)) return;
    // The state of a process is that of its first thread; tree_busy() looks at the others.
    if (threads > 1) p.state |= (char)0x80;
    tree->list[tree->n++] = p;
}

static struct process* find(const struct tree* tree, pid_t pid) {
    size_t low = 0, high = tree->n; // /proc is in order
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (tree->list[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < tree->n && tree->list[low].pid == pid ? &tree->list[low] : NULL;
}

int tree_scan(struct tree* tree, pid_t root, pid_t session) {
    tree->n = 0;
    const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0) return errno;
    struct scan scan = {tree, proc, 0};
    const int error = each_number(proc, add, &scan);
    close(proc);
    if (error || scan.error) return error ? error : scan.error;
    bool more = true;
    while (more) {
        more = false;
        for (size_t i = 0; i < tree->n; ++i) {
            struct process* p = &tree->list[i];
            if (p->ours) continue;
            const struct process* parent = find(tree, p->parent);
            p->ours = root ? p->parent == root || (parent && parent->ours)
                           : p->session == session || (parent && parent->ours);
            more |= p->ours;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < tree->n; ++i)
        if (tree->list[i].ours && tree->list[i].state != 'Z' && tree->list[i].state != 'X')
            tree->list[kept++] = tree->list[i];
    tree->n = kept;
    return 0;
}

static bool is_busy(char state) {
    return state == 'R' || state == 'D';
}

struct threads {
    int proc;
    pid_t pid;
    bool busy;
};

static void look_at_thread(void* context, pid_t thread) {
    struct threads* all = context;
    char path[64];
    path_of(path, sizeof path, all->pid, "/task/", thread, "/stat");
    struct process p = {0};
    uint64_t ignored;
    if (!all->busy && read_stat(all->proc, path, &p, &ignored)) all->busy = is_busy(p.state);
}

bool tree_busy(const struct tree* tree) {
    for (size_t i = 0; i < tree->n; ++i) {
        const struct process* p = &tree->list[i];
        if (is_busy(p->state & 0x7f)) return true;
        if (!(p->state & 0x80)) continue;
        struct threads threads = {open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), p->pid, false};
        char path[48];
        path_of(path, sizeof path, p->pid, "", 0, "/task");
        const int directory = openat(threads.proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (directory >= 0) {
            each_number(directory, look_at_thread, &threads);
            close(directory);
        }
        if (threads.proc >= 0) close(threads.proc);
        if (threads.busy) return true;
    }
    return false;
}

int tree_signal(const struct tree* tree, int signal) {
    int error = 0;
    for (size_t i = 0; i < tree->n; ++i)
        if (kill(tree->list[i].pid, signal) != 0 && errno != ESRCH && !error) error = errno;
    return error;
}

int tree_kill(struct tree* tree, pid_t root, pid_t session) {
    int error = 0;
    // Whatever forks meanwhile is found by the next pass; what is stopped cannot fork. A bounded
    // number of passes, because a process in an uninterruptible wait does not stop either.
    for (int pass = 0; pass < 16; ++pass) {
        const int scan_error = tree_scan(tree, root, session);
        if (scan_error) return scan_error;
        bool moving = false;
        for (size_t i = 0; i < tree->n; ++i) {
            const char state = tree->list[i].state & 0x7f;
            if (state == 'T' || state == 't') continue;
            if (kill(tree->list[i].pid, SIGSTOP) == 0)
                moving = true;
            else if (errno != ESRCH && !error)
                error = errno;
        }
        if (!moving) break;
        sched_yield();
    }
    const int kill_error = tree_signal(tree, SIGKILL);
    return error ? error : kill_error;
}
