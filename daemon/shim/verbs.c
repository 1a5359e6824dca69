// The verbs that come and go: kill, stdin, ack, ps.
#include "shim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ull

// Waits for an answer of one of two types; others are skipped. False: nobody answers any more, or
// not in time.
static bool await(int sock, enum wire_type a, enum wire_type b, uint64_t limit_ms,
                  struct wire* head, void* payload, size_t room, size_t* n) {
    const uint64_t until = now_ns() + limit_ms * MS;
    for (;;) {
        const uint64_t now = now_ns();
        struct pollfd one = {sock, POLLIN, 0};
        const uint64_t left = now < until ? (until - now) / MS + 1 : 0;
        const int ready = poll(&one, 1, left > 1000000 ? 1000000 : (int)left);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return false;
        int fd;
        if (wire_receive(sock, head, payload, room, n, &fd) != 0) return false;
        if (fd >= 0) close(fd);
        if (head->type == a || head->type == b) return true;
    }
}

static _Noreturn void pass_refusal(const struct wire* head, const char* payload, size_t n) {
    const bool valid = n > 0 && payload[n - 1] == '\0';
    const size_t length = valid ? strlen(payload) : 0;
    fail(valid ? payload : "protocol", head->error, length + 1 < n ? payload + length + 1 : "-",
         false);
}

static void wait_a_while(long ms) {
    nanosleep(&(struct timespec){0, ms * (long)MS}, NULL);
}

// Connects, retrying where a runner may be about to listen. ECONNREFUSED: there is none.
static int connect_patiently(const char* id, int* sock) {
    for (int tries = 0;; ++tries) {
        const int error = wire_connect(id, sock);
        if (error != ECONNREFUSED || tries == 10) return error;
        struct claim claim;
        const int found = claim_read(id, &claim);
        if (found == ENOENT || (found == 0 && claim.phase > phase_exited)) return error;
        wait_a_while(2);
    }
}

// The runner has no place for another connection. It has so many that this passes soon.
#define BUSY_TRIES 50

static bool is_busy(const struct wire* head, const char* payload, size_t n) {
    return head->type == wire_refused && n >= sizeof "busy" &&
           memcmp(payload, "busy", sizeof "busy") == 0;
}

static void wait_for_a_place(int sock) {
    close(sock);
    wait_a_while(20);
}

// -- kill

static _Noreturn void killed(bool confirmed, const char* was, uint64_t left, int error) {
    frame("killed");
    field("confirmed", confirmed ? "yes" : "no");
    field("was", was);
    field_u64("left", left);
    field_opt("errno", error ? error : -1);
    frame_end();
    finish(0);
}

// The runner is gone. What is left of the command's session is killed; what made a session of its
// own cannot be found any more, so this confirms nothing.
static _Noreturn void kill_orphans(const struct claim* claim, uint64_t confirm_ms) {
    if (*claim->boot && strcmp(claim->boot, facts_boot) != 0) killed(true, "lost", 0, 0);
    struct tree tree = {0};
    int error = 0;
    const uint64_t until = now_ns() + confirm_ms * MS;
    if (claim->main > 1) do {
            error = tree_kill(&tree, 0, claim->main);
            if (tree.n == 0) break;
            wait_a_while(5);
        } while (now_ns() < until);
    killed(false, "lost", tree.n, error);
}

void verb_kill(const char* id, const char* digest, int signal, uint64_t grace_ms,
               uint64_t confirm_ms) {
    hello("kill");
    frame_end();
    bool busy = false;
    for (int tries = 0; tries < BUSY_TRIES; ++tries) {
        int sock;
        int error = connect_patiently(id, &sock);
        if (!error) {
            struct wire head;
            char payload[256];
            size_t n;
            const uint64_t v[] = {(uint64_t)signal, grace_ms, confirm_ms};
            wire_request(sock, wire_kill, v, 3, id, digest, -1);
            if (await(sock, wire_killed, wire_refused, grace_ms + confirm_ms + 2000, &head, payload,
                      sizeof payload, &n)) {
                busy = is_busy(&head, payload, n);
                if (busy) {
                    wait_for_a_place(sock);
                    continue;
                }
                if (head.type == wire_refused) pass_refusal(&head, payload, n);
                killed(head.v[0] != 0, head.v[1] == was_running ? "running" : "ended", head.v[2],
                       (int)head.v[3]);
            }
            struct pollfd one = {sock, POLLIN, 0};
            if (poll(&one, 1, 0) == 0) killed(false, "running", 0, ETIMEDOUT);
            close(sock); // it went away meanwhile: what is known now?
            continue;
        }
        if (error != ECONNREFUSED)
            fail(error == EPERM ? "socket_foreign" : "socket_failed", error, "connect", false);
        // Nobody there: be the one who has the id, so that no start can come in between.
        int listener;
        error = wire_listen(id, &listener);
        if (error == EADDRINUSE) {
            // A runner between its bind and its listen, which may have lost the processor there.
            wait_a_while(tries < 10 ? 2 : 20);
            continue;
        }
        if (error) fail("socket_failed", error, "bind", false);
        struct claim claim = {.phase = phase_cancelled,
                              .end = {.reason = reason_cancelled, .code = -1, .signal = -1}};
        memcpy(claim.boot, facts_boot, sizeof facts_boot);
        memcpy(claim.digest, digest, strlen(digest));
        const char* at;
        int fd;
        error = claim_create(id, &claim, &fd, &at);
        if (!error) killed(true, "unclaimed", 0, 0);
        if (error != EEXIST) fail("claim_failed", error, at, false);
        struct claim old;
        error = claim_read(id, &old);
        if (error) fail("claim_unreadable", error, "claim", false);
        if (*old.digest && *digest && strcmp(old.digest, digest) != 0)
            fail("id_in_use", 0, "digest", false);
        switch (old.phase) {
        case phase_claimed:
            error = claim_open(id, O_RDWR, &fd);
            if (!error) error = claim_write(fd, &claim);
            if (error) fail("claim_failed", error, "claim", false);
            killed(true, "unclaimed", 0, 0);
        case phase_cancelled:
            killed(true, "cancelled", 0, 0);
        case phase_failed:
            killed(true, "ended", 0, 0);
        default: // finished, too: its background processes may live on
            kill_orphans(&old, confirm_ms);
        }
    }
    fail(busy ? "busy" : "socket_failed", busy ? EBUSY : EAGAIN, "connect", false);
}

// -- stdin

static _Noreturn void fed(const char* state, uint64_t accepted, uint64_t written_to) {
    frame("stdin");
    field("state", state);
    field_u64("accepted", accepted);
    field_u64("written", written_to);
    frame_end();
    finish(0);
}

static int open_chunk(const struct stdin_options* how, uint64_t* size) {
    if (how->path) {
        const int fd = open(how->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat status;
        if (fd < 0 || fstat(fd, &status) != 0) fail("stdin_failed", errno, "open", false);
        if (!S_ISREG(status.st_mode)) fail("stdin_failed", EINVAL, "open", false);
        *size = (uint64_t)status.st_size;
        return fd;
    }
    if (!how->data || how->size == 0) return -1;
    const int fd = memfd_create("stdin", MFD_CLOEXEC);
    if (fd < 0) fail("stdin_failed", errno, "memfd", false);
    for (size_t done = 0; done < how->size;) {
        const ssize_t n = write(fd, how->data + done, how->size - done);
        if (n <= 0) fail("stdin_failed", errno, "memfd", false);
        done += (size_t)n;
    }
    *size = how->size;
    return fd;
}

void verb_stdin(const struct stdin_options* how) {
    static const char* const names[] = {"open", "eof", "closed", "busy", "early", "none", "ended"};
    hello("stdin");
    frame_end();
    uint64_t size = 0;
    const int chunk = open_chunk(how, &size);
    struct wire head;
    char payload[256];
    size_t n;
    int sock;
    for (int tries = 1;; ++tries) {
        const int error = connect_patiently(how->id, &sock);
        if (error == ECONNREFUSED) {
            struct claim claim;
            const bool over = claim_read(how->id, &claim) == 0 && claim.phase >= phase_exited;
            if (how->path && how->unlink) unlink(how->path);
            fed(over ? "ended" : "lost", 0, 0);
        }
        if (error)
            fail(error == EPERM ? "socket_foreign" : "socket_failed", error, "connect", false);
        const uint64_t v[] = {how->offset, size, how->eof, 0};
        wire_request(sock, wire_stdin, v, 4, how->id, "", chunk);
        if (!await(sock, wire_fed, wire_refused, 5000, &head, payload, sizeof payload, &n)) {
            // One that is stopped or starved keeps the connection, and may take this yet.
            struct pollfd one = {sock, POLLIN, 0};
            if (tries == BUSY_TRIES || poll(&one, 1, 0) == 0) fed("unanswered", 0, 0);
            wait_for_a_place(sock); // it went away meanwhile: what is known now?
            continue;
        }
        if (!is_busy(&head, payload, n) || tries == BUSY_TRIES) break;
        wait_for_a_place(sock);
    }
    if (head.type == wire_refused) pass_refusal(&head, payload, n);
    struct wire first = head;
    const uint64_t end = how->offset + size;
    const bool comes_again = first.v[0] == stdin_busy && first.v[1] < end;
    if (how->path && how->unlink && !comes_again) unlink(how->path);
    if (first.v[0] == stdin_open && first.v[1] >= end && first.v[2] < end &&
        await(sock, wire_fed, wire_refused, how->wait_ms, &head, payload, sizeof payload, &n) &&
        head.type == wire_fed)
        first = head;
    fed(first.v[0] < sizeof names / sizeof *names ? names[first.v[0]] : "lost", first.v[1],
        first.v[2]);
}

// -- ack

int acknowledge(const char* id, uint64_t pos, bool done, bool* nothing_left) {
    int sock;
    const int error = wire_connect(id, &sock);
    *nothing_left = false;
    if (!error) {
        const uint64_t v[] = {pos, done};
        struct wire head;
        char payload[256];
        size_t n;
        wire_request(sock, wire_ack, v, 2, id, "", -1);
        const bool answered =
            await(sock, wire_acked, wire_refused, 500, &head, payload, sizeof payload, &n);
        close(sock);
        if (answered && is_busy(&head, payload, n)) return EBUSY;
        *nothing_left = answered && head.type == wire_acked && head.v[0] != 0;
        return 0;
    }
    struct claim claim;
    const int found = claim_read(id, &claim);
    // Without a runner only the claim is left, whatever it says; but a fresh one may be about to be
    // used.
    if (found == ENOENT)
        *nothing_left = true;
    else if (done && error == ECONNREFUSED && !(found == 0 && claim.phase == phase_claimed))
        *nothing_left = claim_remove(id) == 0;
    return 0;
}

void verb_ack(const char* id, uint64_t pos, bool done) {
    hello("ack");
    frame_end();
    bool gone;
    int error = acknowledge(id, pos, done, &gone);
    for (int tries = 1; error && tries < BUSY_TRIES; ++tries) {
        wait_a_while(20);
        error = acknowledge(id, pos, done, &gone);
    }
    if (error) fail("busy", error, "connect", false);
    frame("acked");
    field("id", id);
    field("state", gone ? "gone" : "running");
    frame_end();
    finish(0);
}

// -- ps

static uint64_t shown;

static void show(const char* id, const char* state, const struct wire_status_reply* live,
                 const struct claim* claim) {
    const int code = live ? live->code : claim->end.code,
              number = live ? live->signal : claim->end.signal;
    const bool over = live ? live->reason[0] != '\0' : claim->phase >= phase_exited;
    frame("exec");
    field_text("id", id);
    field_text("state", state);
    field_opt("pid", live && live->pid > 0 ? live->pid : -1);
    field_u64("age_ms", live ? live->age_ms : claim->end.elapsed_ms);
    field_u64("descendants", live ? live->descendants : 0);
    field_u64("pos", live ? live->pos : claim->end.out + claim->end.err);
    field_u64("start", live ? live->start : claim->end.out + claim->end.err);
    field_u64("followed", live ? live->followed : 0);
    field_opt("code", code);
    field_opt("signal", number);
    field("reason", !over ? "-" : live ? live->reason : reason_names[claim->end.reason]);
    frame_end();
    ++shown;
}

// EBUSY: there is no place to ask from.
static int show_live(int sock, const char* id) {
    struct wire head;
    union {
        struct wire_status_reply reply;
        char refusal[sizeof(struct wire_status_reply)];
    } payload;
    size_t n;
    wire_request(sock, wire_status, NULL, 0, id, "", -1);
    const bool told =
        await(sock, wire_told, wire_refused, 2000, &head, &payload, sizeof payload, &n);
    close(sock);
    if (told && is_busy(&head, payload.refusal, n)) return EBUSY;
    if (!told || head.type != wire_told || n != sizeof payload.reply) return EPROTO;
    struct wire_status_reply* reply = &payload.reply;
    reply->id[sizeof reply->id - 1] = reply->state[sizeof reply->state - 1] =
        reply->reason[sizeof reply->reason - 1] = '\0';
    show(reply->id, reply->state, reply, NULL);
    return 0;
}

// Sockets are found by their names, so that a runner whose claim was removed is seen too.
static void show_sockets(void) {
    static char content[1 << 16];
    char prefix[108];
    const size_t length = wire_prefix(prefix, sizeof prefix);
    const int fd = open("/proc/net/unix", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    size_t have = 0;
    for (;;) {
        const ssize_t n = read(fd, content + have, sizeof content - 1 - have);
        if (n > 0) have += (size_t)n;
        content[have] = '\0';
        char* line = content;
        for (char* end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            char* name = strchr(line, '@');
            // Flags 00010000: the listening one, not its connections of the same name.
            if (!name || strncmp(name, prefix, length) != 0 || !strstr(line, " 00010000 "))
                continue;
            int sock;
            for (int tries = 0; tries < BUSY_TRIES; ++tries) {
                if (wire_connect_name(name, strlen(name), &sock) != 0) break;
                if (show_live(sock, "") != EBUSY) break;
                wait_a_while(20);
            }
        }
        have = strlen(line);
        memmove(content, line, have);
        if (n <= 0 || have == sizeof content - 1) break;
    }
    close(fd);
}

struct entry { // struct linux_dirent64
    uint64_t inode, offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static void show_claims(void) {
    static _Alignas(struct entry) char block[1 << 15];
    const int directory = open(SHIM_CLAIMS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    for (long n; (n = syscall(SYS_getdents64, directory, block, sizeof block)) > 0;) {
        for (long at = 0; at < n;) {
            const struct entry* e = (const struct entry*)(block + at);
            at += e->length;
            if (!is_id(e->name)) continue;
            int sock;
            const int error = wire_connect(e->name, &sock);
            if (!error) close(sock); // shown by its socket
            struct claim claim;
            if (!error || claim_read(e->name, &claim) != 0) continue;
            show(e->name, phase_names[claim.phase], NULL, &claim);
        }
    }
    close(directory);
}

void verb_ps(void) {
    hello("ps");
    frame_end();
    show_sockets();
    show_claims();
    frame("done");
    field_u64("n", shown);
    frame_end();
    finish(0);
}
