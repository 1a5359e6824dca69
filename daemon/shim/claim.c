// The claim file of an id, and what identifies this boot of this sandbox.
//
// A claim is made with O_EXCL and then only overwritten in place, one small write, so that a full
// disk is met before anything runs and never later. It is text of a fixed size: a header and
// key=value fields. The directory is 1777: processes of several users may make claims. The files
// are 0644: their content steers only the user's own commands.
//
// A few files are kept in reserve that a claim can be made of by a rename alone, so that on a full
// disk the command can still run that makes room.
#include "shim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CLAIM_SIZE 768
#define RESERVE 4 // claims: the command that makes room, and those it is acknowledged by
#define CLAIM_HEADER "deepinfra-shim-claim/1"

const char* const phase_names[] = {"none",     "claimed", "started",  "exited",
                                   "finished", "failed",  "cancelled"};
const char* const reason_names[] = {"exited", "timed_out", "cancelled", "failed"};

char facts_boot[96];
uint64_t facts_pidns;

static ssize_t read_small(const char* path, char* to, size_t room) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    const ssize_t n = read(fd, to, room - 1);
    const int error = errno;
    close(fd);
    if (n < 0) return -error;
    to[n] = '\0';
    return n;
}

uint64_t process_start(pid_t pid) {
    char path[32], stat[1024];
    struct text name = {path, 0, sizeof path - 1};
    put(&name, "/proc/");
    put_i64(&name, pid);
    put(&name, "/stat");
    path[name.n] = '\0';
    if (read_small(path, stat, sizeof stat) <= 0) return 0;
    const char* at = strrchr(stat, ')'); // the name may hold anything
    for (int skip = 0; at && skip < 20; ++skip)
        at = strchr(at + 1, ' ');
    uint64_t value = 0;
    while (at && *++at >= '0' && *at <= '9')
        value = value * 10 + (uint64_t)(*at - '0');
    return value;
}

void facts_gather(void) {
    struct stat status;
    if (stat("/proc/self/ns/pid", &status) == 0)
        facts_pidns = status.st_ino;
    else if (stat("/", &status) == 0)
        facts_pidns = status.st_dev * 31u + status.st_ino;
    char id[64];
    const ssize_t n = read_small("/proc/sys/kernel/random/boot_id", id, sizeof id);
    struct text boot = {facts_boot, 0, sizeof facts_boot - 1};
    for (ssize_t i = 0; i < n; ++i)
        if ((id[i] >= '0' && id[i] <= '9') || (id[i] >= 'a' && id[i] <= 'f'))
            put_char(&boot, id[i]);
    put_char(&boot, '.');
    put_u64(&boot, facts_pidns);
    put_char(&boot, '.');
    put_u64(&boot, process_start(1));
    facts_boot[boot.n] = '\0';
}

static const char* claim_path(const char* id) {
    static char path[sizeof SHIM_CLAIMS + SHIM_ID_MAX + 2];
    struct text name = {path, 0, sizeof path - 1};
    put(&name, SHIM_CLAIMS "/");
    put(&name, id);
    path[name.n] = '\0';
    return path;
}

static const char* reserve_path(int number) {
    static char path[] = SHIM_CLAIMS "/.reserve-0"; // no id begins with a dot
    path[sizeof path - 2] = (char)('0' + number);
    return path;
}

// 0 or errno; EEXIST where there is a file of that name.
static int move(const char* from, const char* to) {
    const unsigned no_replace = 1; // RENAME_NOREPLACE
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, no_replace) == 0 ? 0 : errno;
}

static int make_directory(const char* path, mode_t mode, const char** at) {
    *at = path;
    if (mkdir(path, 0755) != 0) return errno;
    // Not by the mode of mkdir, which the umask narrows.
    return mode == 0755 || chmod(path, mode) == 0 ? 0 : errno;
}

int claims_prepare(const char** at) {
    int error = make_directory(SHIM_CLAIMS, 01777, at);
    if (error == ENOENT) {
        error = make_directory(SHIM_HOME, 0755, at);
        if (error == 0 || error == EEXIST) error = make_directory(SHIM_CLAIMS, 01777, at);
    }
    return error == EEXIST ? 0 : error;
}

void claims_reserve(void) {
    const char content[CLAIM_SIZE] = {0};
    for (int i = 0; i < RESERVE; ++i) {
        const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
        const int fd = open(reserve_path(i), flags, 0644);
        if (fd < 0) continue;
        if (write(fd, content, sizeof content) != sizeof content) unlink(reserve_path(i));
        close(fd);
    }
}

static int claim_from_reserve(const char* id, const struct claim* what, int* fd) {
    for (int i = 0; i < RESERVE; ++i) {
        const int moved = move(reserve_path(i), claim_path(id));
        if (moved == EEXIST) return EEXIST;
        if (moved || claim_open(id, O_RDWR, fd) != 0) continue;
        const int error = claim_write(*fd, what);
        if (!error) return 0;
        claim_remove(id);
        close(*fd);
        *fd = -1;
    }
    return ENOSPC;
}

static int claim_make(const char* id, const struct claim* what, int* fd) {
    *fd = open(claim_path(id), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (*fd < 0) return errno;
    const int error = claim_write(*fd, what);
    if (error) {
        unlink(claim_path(id));
        close(*fd);
        *fd = -1;
    }
    return error;
}

int claim_create(const char* id, const struct claim* what, int* fd, const char** at) {
    *at = "claim";
    int error = claim_make(id, what, fd);
    if (error == ENOENT) {
        error = claims_prepare(at);
        if (error) return error;
        *at = "claim";
        error = claim_make(id, what, fd);
    }
    if (error == ENOSPC || error == EDQUOT) {
        const int reserved = claim_from_reserve(id, what, fd);
        if (reserved != ENOSPC) return reserved;
    }
    return error;
}

int claim_open(const char* id, int flags, int* fd) {
    *fd = open(claim_path(id), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0) return errno == ELOOP ? EBADMSG : errno;
    struct stat status;
    if (fstat(*fd, &status) == 0 && S_ISREG(status.st_mode)) return 0;
    close(*fd);
    *fd = -1;
    return EBADMSG;
}

static void claim_field(struct text* to, const char* name, int64_t value) {
    put_char(to, ' ');
    put(to, name);
    put_char(to, '=');
    put_i64(to, value);
}

static void claim_text(struct text* to, const char* name, const char* value) {
    put_char(to, ' ');
    put(to, name);
    put_char(to, '=');
    put(to, value);
}

int claim_write(int fd, const struct claim* what) {
    char content[CLAIM_SIZE];
    struct text to = {content, 0, CLAIM_SIZE - 1};
    put(&to, CLAIM_HEADER);
    claim_text(&to, "phase", phase_names[what->phase]);
    claim_text(&to, "boot", what->boot);
    claim_text(&to, "digest", what->digest);
    claim_field(&to, "runner", what->runner);
    claim_field(&to, "main", what->main);
    claim_text(&to, "reason", reason_names[what->end.reason]);
    claim_field(&to, "was_started", what->end.started);
    claim_field(&to, "code", what->end.code);
    claim_field(&to, "signal", what->end.signal);
    claim_field(&to, "errno", what->end.error);
    claim_text(&to, "at", what->end.at);
    claim_field(&to, "out", (int64_t)what->end.out);
    claim_field(&to, "err", (int64_t)what->end.err);
    claim_field(&to, "dropped", (int64_t)what->end.dropped);
    claim_field(&to, "elapsed_ms", (int64_t)what->end.elapsed_ms);
    while (to.n < to.room)
        content[to.n++] = ' ';
    content[CLAIM_SIZE - 1] = '\n';
    const ssize_t n = pwrite(fd, content, CLAIM_SIZE, 0);
    if (n < 0) return errno;
    return n == CLAIM_SIZE ? 0 : ENOSPC;
}

static bool find_text(const char* content, const char* name, char* to, size_t room) {
    const size_t length = strlen(name);
    for (const char* at = content; (at = strchr(at, ' ')) != NULL;) {
        ++at;
        if (strncmp(at, name, length) != 0 || at[length] != '=') continue;
        at += length + 1;
        size_t n = 0;
        while (at[n] && at[n] != ' ' && at[n] != '\n')
            ++n;
        if (n >= room) return false;
        memcpy(to, at, n);
        to[n] = '\0';
        return true;
    }
    return false;
}

static int64_t find_number(const char* content, const char* name) {
    char digits[24];
    uint64_t value = 0;
    if (!find_text(content, name, digits, sizeof digits)) return -1;
    return parse_u64(digits, &value) ? (int64_t)value : -1;
}

int claim_read(const char* id, struct claim* what) {
    char content[CLAIM_SIZE + 1], word[24];
    int fd;
    const int error = claim_open(id, O_RDONLY, &fd);
    if (error) return error;
    const ssize_t n = pread(fd, content, CLAIM_SIZE, 0);
    const int read_error = errno;
    close(fd);
    if (n < 0) return read_error;
    content[n] = '\0';
    memset(what, 0, sizeof *what);
    if (strncmp(content, CLAIM_HEADER " ", sizeof CLAIM_HEADER) != 0) {
        // Made, but not written: its maker was killed in between, and nothing was started.
        if (n != 0) return EBADMSG;
        what->phase = phase_claimed;
        return 0;
    }
    if (!find_text(content, "phase", word, sizeof word)) return EBADMSG;
    for (int i = phase_claimed; i <= phase_cancelled; ++i)
        if (strcmp(word, phase_names[i]) == 0) what->phase = (enum phase)i;
    if (what->phase == phase_none) return EBADMSG;
    find_text(content, "boot", what->boot, sizeof what->boot);
    find_text(content, "digest", what->digest, sizeof what->digest);
    what->runner = (pid_t)find_number(content, "runner");
    what->main = (pid_t)find_number(content, "main");
    if (find_text(content, "reason", word, sizeof word))
        for (int i = reason_exited; i <= reason_failed; ++i)
            if (strcmp(word, reason_names[i]) == 0) what->end.reason = (enum reason)i;
    what->end.started = find_number(content, "was_started") == 1;
    what->end.code = (int)find_number(content, "code");
    what->end.signal = (int)find_number(content, "signal");
    what->end.error = (int)find_number(content, "errno");
    find_text(content, "at", what->end.at, sizeof what->end.at);
    what->end.out = (uint64_t)find_number(content, "out");
    what->end.err = (uint64_t)find_number(content, "err");
    what->end.dropped = (uint64_t)find_number(content, "dropped");
    what->end.elapsed_ms = (uint64_t)find_number(content, "elapsed_ms");
    if ((int64_t)(what->end.out | what->end.err | what->end.dropped) < 0) return EBADMSG;
    return 0;
}

int claim_remove(const char* id) {
    for (int i = 0; i < RESERVE; ++i) {
        const int error = move(claim_path(id), reserve_path(i));
        if (error == 0 || error == ENOENT) return error;
        if (error != EEXIST) break;
    }
    return unlink(claim_path(id)) == 0 ? 0 : errno;
}
