/* Preloaded into the daemon by test_kill_points.py: dies as by SIGKILL at the n-th time that a file of a given name is put in
   its place by rename(2), just before it or just after it. What the daemon itself does is not changed by anything else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int rename(const char* from, const char* to) {
    static int seen;
    int (*next)(const char*, const char*) = (int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename");
    const char *name = getenv("KILL_AT_NAME"), *count = getenv("KILL_AT_COUNT"), *when = getenv("KILL_AT_WHEN");
    const char* last = strrchr(to, '/');
    const int hit = name && count && when && !strcmp(last ? last + 1 : to, name) && ++seen == atoi(count);
    if (hit && !strcmp(when, "before")) kill(getpid(), SIGKILL);
    const int result = next(from, to);
    if (hit) kill(getpid(), SIGKILL);
    return result;
}
