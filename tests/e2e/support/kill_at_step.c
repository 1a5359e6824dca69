/* Preloaded into the daemon by test_kill_points.py: dies as by SIGKILL after the n-th step that
   changes something below a directory, whatever function of the C library makes it. Of a write(2)
   also the first half is a step, so that it is torn.

   After fsync(2), chmod(2) and close(2) it does not die: a process's death takes nothing from what
   it has written, so nothing is there that was not there a step before. For that the machine must
   die, which is not what is looked at.

   KILL_AT_UNDER: the directory, absolute; KILL_AT_STEP: n, from 1; KILL_AT_EXCEPT: names, one after
   another, each between two colons, of files there that do not count; KILL_AT_LOG: a file outside,
   to which each step's name is appended. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char* last_of(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Of what it replaces, without the ".tmp". */
static void name_of(const char* path, char* name, size_t size) {
    snprintf(name, size, "%s", last_of(path));
    const size_t length = strlen(name);
    if (length > 4 && !strcmp(name + length - 4, ".tmp")) name[length - 4] = 0;
}

static int counts(const char* path) {
    const char *under = getenv("KILL_AT_UNDER"), *except = getenv("KILL_AT_EXCEPT");
    const size_t length = under ? strlen(under) : 0;
    if (!length || strncmp(path, under, length) || (path[length] && path[length] != '/')) return 0;
    char name[NAME_MAX + 1], listed[NAME_MAX + 3];
    name_of(path, name, sizeof name);
    snprintf(listed, sizeof listed, ":%s:", name);
    return !except || !strstr(except, listed);
}

static int counts_fd(int fd, char* path) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return counts(path);
}

static int is_last(void) {
    static atomic_int seen;
    const char* step = getenv("KILL_AT_STEP");
    return ++seen == (step ? atoi(step) : 0);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void note(const char* path) {
    char line[NAME_MAX + 2];
    const char* log = getenv("KILL_AT_LOG");
    if (!log) return;
    name_of(path, line, sizeof line - 1);
    strcat(line, "\n");
    const int fd =
        (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    syscall(SYS_write, fd, line, strlen(line));
    syscall(SYS_close, fd);
}

/* After a call that has done what it was to do. */
static void step(const char* path) {
    if (!counts(path)) return;
    note(path);
    if (is_last()) die();
}

int open(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const int mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, int) : 0;
    va_end(more);
    const int makes = (flags & O_CREAT) && access(path, F_OK) != 0;
    const int fd = NEXT(open)(path, flags, mode);
    if (fd >= 0 && (makes || (flags & O_TRUNC))) step(path);
    return fd;
}

int mkdir(const char* path, mode_t mode) {
    const int result = NEXT(mkdir)(path, mode);
    if (result == 0) step(path);
    return result;
}

int rename(const char* from, const char* to) {
    const int result = NEXT(rename)(from, to);
    if (result == 0) step(to);
    return result;
}

int unlink(const char* path) {
    const int result = NEXT(unlink)(path);
    if (result == 0) step(path);
    return result;
}

int remove(const char* path) {
    const int result = NEXT(remove)(path);
    if (result == 0) step(path);
    return result;
}

int ftruncate(int fd, off_t size) {
    char path[PATH_MAX];
    struct stat before;
    const int shortens = fstat(fd, &before) == 0 && before.st_size != size;
    const int result = NEXT(ftruncate)(fd, size);
    if (result == 0 && shortens && counts_fd(fd, path)) step(path);
    return result;
}

ssize_t write(int fd, const void* bytes, size_t size) {
    char path[PATH_MAX];
    if (!counts_fd(fd, path)) return NEXT(write)(fd, bytes, size);
    if (is_last()) {
        syscall(SYS_write, fd, bytes, size / 2);
        die();
    }
    const ssize_t result = NEXT(write)(fd, bytes, size);
    step(path);
    return result;
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
    char path[PATH_MAX];
    if (!counts_fd(fd, path)) return NEXT(pwrite)(fd, bytes, size, offset);
    if (is_last()) {
        syscall(SYS_pwrite64, fd, bytes, size / 2, offset);
        die();
    }
    const ssize_t result = NEXT(pwrite)(fd, bytes, size, offset);
    step(path);
    return result;
}
