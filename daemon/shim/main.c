// The shim's command line. What it accepts is written down in frames.h.
//
// Arguments are decoded into memory of our own and then wiped from the process's command line,
// which everybody can see: users look for, and kill, processes by their own words (`pkill -f`), and
// would find us.
#include "run.h"
#include "shim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

extern char** environ;

static const char* current_verb = "none";
static char* arena;
static size_t arena_left;

static _Noreturn void misuse(const char* what) {
    hello(current_verb);
    frame_end();
    fail("usage", 0, what, true);
}

static void* get(size_t n) {
    n = (n + 15) & ~(size_t)15;
    if (n > arena_left) misuse("memory");
    void* at = arena;
    arena += n;
    arena_left -= n;
    return at;
}

static char* copy(const char* s) {
    const size_t n = strlen(s) + 1;
    return memcpy(get(n), s, n);
}

static char* decoded(const char* s, const char* what) {
    char* to = get(strlen(s) + 1);
    size_t n;
    if (!unquote(s, to, &n)) misuse(what);
    return to;
}

static uint64_t number(const char* s, const char* what) {
    uint64_t value;
    if (!parse_u64(s, &value)) misuse(what);
    // Above this, arithmetic in nanoseconds would overflow; such a time never comes.
    return value;
}

static uint64_t period(const char* s, const char* what) {
    const uint64_t value = number(s, what), century = 3155760000ull;
    return value > century ? century : value;
}

static uint8_t* bytes(const char* base64, size_t* n) {
    uint8_t* to = get(strlen(base64) + 4);
    if (!base64_decode(base64, to, n)) misuse("base64");
    return to;
}

static const char* id_of(const char* s) {
    if (!s || !is_id(s)) misuse("ID");
    return copy(s);
}

static int signal_of(const char* s) {
    static const struct {
        const char* name;
        int number;
    } names[] = {
        {"INT", SIGINT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}, {"KILL", SIGKILL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (strcmp(s, names[i].name) == 0) return names[i].number;
    const uint64_t value = number(s, "--signal");
    if (value == 0 || value > 64) misuse("--signal");
    return (int)value;
}

static void wipe(int argc, char** argv) {
    static const char name[] = "deepinfrad"; // has no word in it that people kill by
    char* end = argv[argc - 1] + strlen(argv[argc - 1]);
    const size_t room = (size_t)(end - argv[0]);
    memset(argv[0], 0, room);
    memcpy(argv[0], name, room < sizeof name ? room : sizeof name);
    prctl(PR_SET_NAME, name);
}

// Values of options, in order. `next()` after a name gives its value.
struct words {
    int argc, at;
    char** argv;
};

static const char* next(struct words* w) {
    return w->at < w->argc ? w->argv[w->at++] : NULL;
}

static const char* value(struct words* w, const char* option) {
    const char* s = next(w);
    if (!s) misuse(option);
    return s;
}

static const char* acks[1024];
static char mark_text[4 * 64 * 3 + 64];

static void read_mark(struct follow_options* how, const char* path) {
    static unsigned count;
    if (count++ == 4) misuse("--mark");
    struct text to = {mark_text, strlen(mark_text), sizeof mark_text - 1};
    put(&to, " mark=");
    char content[64];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, content, sizeof content);
    if (fd >= 0) close(fd);
    struct stat status;
    if (n < 0 && (lstat(path, &status) == 0 || (errno != ENOENT && errno != ENOTDIR))) n = 0;
    if (n < 0)
        put_char(&to, '-');
    else
        put_quoted(&to, content, (size_t)n);
    how->marks = mark_text;
}

static bool follow_option(struct follow_options* how, const char* option, struct words* w) {
    if (strcmp(option, "--max-seconds") == 0)
        how->max_seconds = period(value(w, option), option);
    else if (strcmp(option, "--max-bytes") == 0)
        how->max_bytes = number(value(w, option), option);
    else if (strcmp(option, "--keepalive-ms") == 0)
        how->keepalive_ms = period(value(w, option), option);
    else if (strcmp(option, "--digest") == 0) {
        how->digest = copy(value(w, option));
        if (!is_digest(how->digest)) misuse(option);
    } else if (strcmp(option, "--unattended") == 0) {
        how->unattended = true;
    } else if (strcmp(option, "--ack") == 0) {
        if (how->ack_count == sizeof acks / sizeof *acks) misuse(option);
        acks[how->ack_count++] = id_of(value(w, option));
    } else
        return false;
    return true;
}

static void set_environment(struct order* order, char** changes, size_t n) {
    size_t inherited = 0;
    while (environ[inherited])
        ++inherited;
    char** env = get((inherited + n + 1) * sizeof *env);
    memcpy(env, environ, inherited * sizeof *env);
    size_t count = inherited;
    for (size_t i = 0; i < n; ++i) {
        const char* equals = strchr(changes[i], '=');
        const size_t length = equals ? (size_t)(equals - changes[i]) : strlen(changes[i]);
        if (length == 0) misuse("--env");
        size_t kept = 0;
        for (size_t k = 0; k < count; ++k)
            if (strncmp(env[k], changes[i], length) != 0 || env[k][length] != '=')
                env[kept++] = env[k];
        count = kept;
        if (equals) env[count++] = changes[i];
    }
    env[count] = NULL;
    order->env = env;
}

static void stdin_option(struct order* order, const char* s) {
    if (strcmp(s, "none") == 0)
        order->stdin_kind = feed_none;
    else if (strcmp(s, "empty") == 0)
        order->stdin_kind = feed_empty;
    else if (strcmp(s, "open") == 0)
        order->stdin_kind = feed_open;
    else if (strncmp(s, "data:", 5) == 0) {
        order->stdin_kind = feed_data;
        order->stdin_data = bytes(s + 5, &order->stdin_size);
    } else if (strncmp(s, "file:", 5) == 0) {
        order->stdin_kind = feed_file;
        order->stdin_path = decoded(s + 5, "--stdin");
    } else
        misuse("--stdin");
}

static _Noreturn void main_run(struct words* w) {
    struct follow_options how = {
        .starting = true, .digest = "", .marks = "", .acks = acks, .keepalive_ms = 15000};
    static struct order order = {
        .spool_cap = 256u << 20, .spool_grace_ms = 3600000, .linger_s = 86400};
    order.id = how.id = id_of(next(w));
    char** changes = get((size_t)w->argc * sizeof *changes);
    size_t change_n = 0, cleanup_n = 0;
    bool raw = false;
    const char* option;
    while ((option = next(w)) != NULL && strcmp(option, "--") != 0) {
        if (follow_option(&how, option, w)) continue;
        if (strcmp(option, "--timeout-ms") == 0)
            order.timeout_ms = period(value(w, option), option);
        else if (strcmp(option, "--kill-grace-ms") == 0)
            order.kill_grace_ms = period(value(w, option), option);
        else if (strcmp(option, "--cwd") == 0)
            order.cwd = decoded(value(w, option), option);
        else if (strcmp(option, "--env") == 0)
            changes[change_n++] = decoded(value(w, option), option);
        else if (strcmp(option, "--merge") == 0)
            order.merge = true;
        else if (strcmp(option, "--stdin") == 0)
            stdin_option(&order, value(w, option));
        else if (strcmp(option, "--unlink-stdin") == 0)
            order.unlink_stdin = true;
        else if (strcmp(option, "--cleanup") == 0) {
            if (cleanup_n == 4) misuse(option);
            order.cleanup[cleanup_n++] = decoded(value(w, option), option);
        } else if (strcmp(option, "--raw") == 0)
            raw = true;
        else if (strcmp(option, "--spool-cap") == 0)
            order.spool_cap = number(value(w, option), option);
        else if (strcmp(option, "--spool-grace-ms") == 0)
            order.spool_grace_ms = period(value(w, option), option);
        else if (strcmp(option, "--linger-s") == 0)
            order.linger_s = period(value(w, option), option);
        else if (strcmp(option, "--mark") == 0)
            read_mark(&how, decoded(value(w, option), option));
        else
            misuse("option");
    }
    if (w->at == w->argc) misuse("ARGV");
    order.argv = get((size_t)(w->argc - w->at + 1) * sizeof *order.argv);
    size_t n = 0;
    while (w->at < w->argc) {
        const char* s = next(w);
        order.argv[n++] = raw ? copy(s) : decoded(s, "ARGV");
    }
    order.argv[n] = NULL;
    order.digest = how.digest;
    set_environment(&order, changes, change_n);
    wipe(w->argc, w->argv);
    run(&order, &how);
}

static _Noreturn void main_follow(struct words* w) {
    struct follow_options how = {.digest = "", .marks = "", .acks = acks, .keepalive_ms = 15000};
    how.id = id_of(next(w));
    how.from = number(next(w), "FROM");
    for (const char* option; (option = next(w)) != NULL;)
        if (!follow_option(&how, option, w)) misuse("option");
    wipe(w->argc, w->argv);
    follow_by_name(&how);
}

static _Noreturn void main_kill(struct words* w) {
    const char *id = id_of(next(w)), *digest = "";
    int signal = 0;
    uint64_t grace_ms = 2000, confirm_ms = 5000;
    for (const char* option; (option = next(w)) != NULL;) {
        if (strcmp(option, "--signal") == 0)
            signal = signal_of(value(w, option));
        else if (strcmp(option, "--grace-ms") == 0)
            grace_ms = period(value(w, option), option);
        else if (strcmp(option, "--confirm-ms") == 0)
            confirm_ms = period(value(w, option), option);
        else if (strcmp(option, "--digest") == 0) {
            digest = copy(value(w, option));
            if (!is_digest(digest)) misuse(option);
        } else
            misuse("option");
    }
    wipe(w->argc, w->argv);
    verb_kill(id, digest, signal, grace_ms, confirm_ms);
}

static _Noreturn void main_stdin(struct words* w) {
    struct stdin_options how = {.wait_ms = 20000};
    how.id = id_of(next(w));
    how.offset = number(next(w), "OFFSET");
    for (const char* option; (option = next(w)) != NULL;) {
        if (strcmp(option, "--data") == 0)
            how.data = bytes(value(w, option), &how.size);
        else if (strcmp(option, "--file") == 0)
            how.path = decoded(value(w, option), option);
        else if (strcmp(option, "--unlink") == 0)
            how.unlink = true;
        else if (strcmp(option, "--eof") == 0)
            how.eof = true;
        else if (strcmp(option, "--wait-ms") == 0)
            how.wait_ms = period(value(w, option), option);
        else
            misuse("option");
    }
    if (how.data && how.path) misuse("--file");
    wipe(w->argc, w->argv);
    verb_stdin(&how);
}

static _Noreturn void main_ack(struct words* w) {
    const char* id = id_of(next(w));
    const uint64_t pos = number(next(w), "POS");
    bool done = false;
    for (const char* option; (option = next(w)) != NULL;) {
        if (strcmp(option, "--done") != 0) misuse("option");
        done = true;
    }
    verb_ack(id, pos, done);
}

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); // ignored, as we may have inherited it, it would swallow exit codes
    facts_gather();
    struct words words = {argc, 1, argv};
    const char* verb = next(&words);
    size_t size = 4096;
    for (int i = 0; i < argc; ++i)
        size += strlen(argv[i]) + 64;
    for (char** one = environ; *one; ++one)
        size += sizeof *one;
    arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) misuse("memory");
    arena_left = size;
    static const struct {
        const char* name;
        void (*go)(struct words*);
    } verbs[] = {{"run", main_run},
                 {"follow", main_follow},
                 {"kill", main_kill},
                 {"stdin", main_stdin},
                 {"ack", main_ack}};
    for (size_t i = 0; verb && i < sizeof verbs / sizeof *verbs; ++i) {
        if (strcmp(verb, verbs[i].name) != 0) continue;
        current_verb = verbs[i].name;
        verbs[i].go(&words);
    }
    if (verb && strcmp(verb, "ps") == 0) verb_ps();
    if (verb && strcmp(verb, "probe") == 0) verb_probe();
    misuse("verb");
}
