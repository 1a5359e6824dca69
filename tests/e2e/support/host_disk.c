/* Preloaded into the daemon by test_fs_host_trouble.py. What its first thread, which must never
   wait for a disk, asks about paths with HOST_DISK_WATCHED in them is written to HOST_DISK_LOG; and
   reading a directory fails where an entry is called HOST_DISK_TORN. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void note(const char* call, const char* path) {
    const char* const watched = getenv("HOST_DISK_WATCHED");
    if (watched == NULL || path == NULL || strstr(path, watched) == NULL || gettid() != getpid()) {
        return;
    }
    const int saved = errno;
    FILE* const log = fopen(getenv("HOST_DISK_LOG"), "a");
    fprintf(log, "%s %s\n", call, path);
    fclose(log);
    errno = saved;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int stat(const char* path, struct stat* status) {
    note("stat", path);
    return REAL(stat)(path, status);
}

int lstat(const char* path, struct stat* status) {
    note("lstat", path);
    return REAL(lstat)(path, status);
}

int statx(int at, const char* path, int flags, unsigned mask, struct statx* status) {
    note("statx", path);
    return REAL(statx)(at, path, flags, mask, status);
}

int statvfs(const char* path, struct statvfs* status) {
    note("statvfs", path);
    return REAL(statvfs)(path, status);
}

int mkdir(const char* path, mode_t mode) {
    note("mkdir", path);
    return REAL(mkdir)(path, mode);
}

int rmdir(const char* path) {
    note("rmdir", path);
    return REAL(rmdir)(path);
}

int unlink(const char* path) {
    note("unlink", path);
    return REAL(unlink)(path);
}

int rename(const char* from, const char* to) {
    note("rename", to);
    return REAL(rename)(from, to);
}

char* realpath(const char* path, char* into) {
    note("realpath", path);
    return REAL(realpath)(path, into);
}

DIR* opendir(const char* path) {
    note("opendir", path);
    return REAL(opendir)(path);
}

int open(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    note("open", path);
    return REAL(open)(path, flags, mode);
}

struct dirent* readdir(DIR* directory) {
    struct dirent* const found = REAL(readdir)(directory);
    const char* const torn = getenv("HOST_DISK_TORN");
    if (found != NULL && torn != NULL && strcmp(found->d_name, torn) == 0) {
        errno = EIO;
        return NULL;
    }
    return found;
}
