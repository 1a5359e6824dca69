/* Preloaded into the daemon by test_fs_races.py: files have times in whole seconds, as on older
   file systems and some of the network. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>

static int coarse(int result, struct stat* status) {
    if (result == 0) status->st_mtim.tv_nsec = status->st_ctim.tv_nsec = 0;
    return result;
}

int stat(const char* path, struct stat* status) {
    return coarse(((int (*)(const char*, struct stat*))dlsym(RTLD_NEXT, "stat"))(path, status),
                  status);
}

int lstat(const char* path, struct stat* status) {
    return coarse(((int (*)(const char*, struct stat*))dlsym(RTLD_NEXT, "lstat"))(path, status),
                  status);
}

int fstat(int fd, struct stat* status) {
    return coarse(((int (*)(int, struct stat*))dlsym(RTLD_NEXT, "fstat"))(fd, status), status);
}

int fstatat(int at, const char* path, struct stat* status, int flags) {
    return coarse(((int (*)(int, const char*, struct stat*, int))dlsym(RTLD_NEXT, "fstatat"))(
                      at, path, status, flags),
                  status);
}
