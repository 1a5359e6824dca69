// The runner: one command's life, independent of every connection.
//
// A detached process of its own session with all signals blocked, the subreaper of everything its
// command starts. Order at the start: the socket (exclusive, live), then the claim file, then
// `started` in the claim, then the command: so whatever dies in between leaves a claim that says no
// less than what may have happened.
//
// Phases: running, until the main process has ended; draining, until what it and its helpers (as
// `tee` in the shell) wrote is taken; ended, until the daemon has acknowledged the end and no
// process is left. What comes after the end, from processes that live on, is read and thrown away,
// slowly: they must neither block nor die of SIGPIPE, and `yes &` must not cost a processor.
//
// Bytes are released when the daemon has acknowledged them *and* no follower holds them: followers
// read the spool's file themselves. A follower that the daemon has overtaken is ended.
#include "feed.h"
#include "shim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ull
#define NEVER UINT64_MAX
#define CONNECTIONS 32
#define DRAIN_LIMIT (300 * MS)   // for helpers that are still at work when the command has ended
#define DRAIN_BYTES (8ull << 20) // and for what they may write meanwhile: `yes &` never runs dry
#define LATE_BYTES_PER_SECOND (1u << 20) // read and thrown away after the end

struct connection {
    int fd; // -1 = free
    bool follower, waiting, told_full, told_note, file_passed;
    bool waits_kill;
    enum wire_was was;   // what the kill met
    uint64_t waits_feed; // position of stdin, 0 = not waiting
    uint64_t printed; // a follower's: unless it is waiting, it holds the bytes from here to at.pos
    struct cursor at;
};

static struct {
    const struct order* order;
    enum { running, draining, ended } phase;
    int listener, signals, claim_fd;
    struct claim claim;
    struct spool* spool;
    struct feed feed;
    int pipe[2]; // stdout, stderr; -1 = at EOF
    pid_t main;
    bool childless; // nothing of the command is left; final
    int cwd_error;
    const char* cwd;
    struct outcome outcome;
    uint64_t started_at, deadline;

    struct {
        bool active, grace, gave_up;
        uint64_t at, until, pause;
        int error;
    } kill;
    bool kill_reason_set;
    enum reason kill_reason;

    struct {
        uint64_t until, next_scan, pause, budget, left[2];
        int quiet;
        bool last;
    } drain;

    uint64_t full_since, acked, late_at, forget_at;
    bool dropping; // full for too long, and nobody has cared
    bool forgotten;
    struct tree tree;
    struct connection connections[CONNECTIONS];
} r;

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static void drop(struct connection* c) {
    close(c->fd);
    c->fd = -1;
    c->follower = false;
}

static void answer(struct connection* c, enum wire_type type, const uint64_t* v, unsigned count,
                   const void* payload, size_t n) {
    if (c->fd >= 0 && wire_send(c->fd, type, v, count, 0, payload, n, -1) != 0) drop(c);
}

static void refuse(struct connection* c, int error, const char* name, const char* at) {
    char payload[64];
    const size_t a = strlen(name) + 1, b = strlen(at) + 1;
    memcpy(payload, name, a);
    memcpy(payload + a, at, b);
    if (wire_send(c->fd, wire_refused, NULL, 0, (uint32_t)error, payload, a + b, -1) != 0) drop(c);
}

// -- what a follower gets

static void serve(struct connection* c) {
    if (!c->waiting || c->fd < 0) return;
    if (r.cwd_error && !c->told_note) {
        const uint64_t v[] = {(uint64_t)r.cwd_error};
        c->told_note = true;
        answer(c, wire_note, v, 1, r.cwd, strlen(r.cwd) + 1);
        if (c->fd < 0) return;
    }
    const uint64_t start = spool_start(r.spool), end = spool_end(r.spool);
    if (c->at.pos < start) {
        const uint64_t from = c->at.pos;
        spool_first(r.spool, &c->at);
        const uint64_t v[] = {from, c->at.pos - from, c->at.off[0], c->at.off[1]};
        answer(c, wire_gap, v, 4, NULL, 0);
    } else if (c->at.pos < end) {
        if (spool_send(r.spool, &c->at, c->fd, &c->file_passed) != 0) drop(c);
    } else if (r.phase == ended) {
        answer(c, wire_end, NULL, 0, &r.outcome, sizeof r.outcome);
    } else if (!c->told_full && !spool_has_room(r.spool)) {
        const uint64_t v[] = {start, end};
        c->told_full = true;
        answer(c, wire_full, v, 2, NULL, 0);
    } else {
        return;
    }
    c->waiting = false;
}

static void serve_all(void) {
    for (int i = 0; i < CONNECTIONS; ++i)
        if (r.connections[i].follower) serve(&r.connections[i]);
}

// Ends a follower that obstructs: it holds bytes that have to go, and is of no use to anybody.
static void supersede(struct connection* c) {
    answer(c, wire_superseded, NULL, 0, NULL, 0);
    if (c->fd >= 0) drop(c);
}

static void release(void) {
    uint64_t upto = r.acked;
    for (int i = 0; i < CONNECTIONS; ++i) {
        struct connection* c = &r.connections[i];
        if (!c->follower || c->waiting) continue;
        // The daemon has more than this one was ever given: it has it from another one.
        if (r.acked > c->at.pos)
            supersede(c);
        else
            upto = earlier(upto, c->printed);
    }
    spool_release(r.spool, upto);
}

static void drop_oldest(void) {
    const uint64_t before = spool_start(r.spool);
    for (int i = 0; i < CONNECTIONS; ++i) {
        struct connection* c = &r.connections[i];
        if (c->follower && !c->waiting && c->printed < before + 2 * BLOCK) supersede(c);
    }
    spool_drop_oldest(r.spool);
}

static void attended(void) {
    r.full_since = 0;
    r.dropping = false;
}

static void attach(struct connection* c, uint64_t from) {
    if (from > spool_end(r.spool)) {
        refuse(c, EINVAL, "bad_offset", "FROM");
        return;
    }
    // Before `start` only the position is known: the gap that follows brings the offsets.
    if (!spool_seek(r.spool, from, &c->at)) {
        spool_first(r.spool, &c->at);
        c->at.pos = from;
    }
    c->follower = c->waiting = true;
    c->printed = from;
    attended();
    const uint64_t v[] = {0, from, c->at.off[0], c->at.off[1]};
    answer(c, wire_state, v, 4, NULL, 0);
}

// -- the end

static void describe_end(void) {
    r.outcome.out = spool_off(r.spool, 0);
    r.outcome.err = spool_off(r.spool, 1);
    r.outcome.dropped = spool_dropped(r.spool);
    r.outcome.elapsed_ms = r.started_at ? (now_ns() - r.started_at) / MS : 0;
    r.outcome.background = r.childless ? 0 : r.tree.n ? (uint32_t)r.tree.n : 1;
}

static void write_claim(enum phase phase) {
    r.claim.phase = phase;
    r.claim.end = r.outcome;
    struct stat status;
    if (fstat(r.claim_fd, &status) == 0 && status.st_nlink == 0 && !r.forgotten) {
        // Removed by the command (`rm -rf`): made again, so that the id stays known when we are
        // gone.
        const char* at;
        int fd;
        if (claim_create(r.order->id, &r.claim, &fd, &at) == 0) {
            close(r.claim_fd);
            r.claim_fd = fd;
            return;
        }
    }
    claim_write(r.claim_fd, &r.claim);
}

static void end_now(enum phase phase) {
    r.phase = ended;
    describe_end();
    serve_all(); // the answer first: it is what somebody waits for
    write_claim(phase);
    for (int i = 0; i < 4; ++i)
        if (r.order->cleanup[i]) unlink(r.order->cleanup[i]);
    r.forget_at = now_ns() + r.order->linger_s * 1000 * MS;
}

static void close_pipe(int stream) {
    close(r.pipe[stream]);
    r.pipe[stream] = -1;
}

static bool at_eof(void) {
    return r.pipe[0] < 0 && r.pipe[1] < 0;
}

// Takes at most `most` bytes; false: nothing came or nothing can be taken now.
static ssize_t take(int stream, size_t most) {
    const ssize_t n = spool_take(r.spool, r.pipe[stream], stream, most);
    if (n == 0 || (n < 0 && n != spool_full && n != -EAGAIN)) close_pipe(stream);
    return n;
}

// What the pipes hold at the moment of the first call is taken, and no more.
static void take_the_rest(void) {
    for (int stream = 0; stream < 2; ++stream) {
        int waiting = 0;
        if (!r.drain.last)
            r.drain.left[stream] =
                r.pipe[stream] >= 0 && ioctl(r.pipe[stream], FIONREAD, &waiting) == 0
                    ? (uint64_t)waiting
                    : 0;
        while (r.pipe[stream] >= 0 && r.drain.left[stream] > 0) {
            const ssize_t n = take(stream, r.drain.left[stream]);
            if (n == spool_full) break;
            if (n <= 0) r.drain.left[stream] = 0;
            if (n > 0) r.drain.left[stream] -= (uint64_t)n;
        }
        if (r.pipe[stream] < 0) r.drain.left[stream] = 0;
    }
    r.drain.last = true;
    if (r.drain.left[0] + r.drain.left[1] == 0) end_now(phase_finished);
}

static void drain_step(void) {
    if (r.drain.last) {
        take_the_rest();
        return;
    }
    bool came = false, full = false;
    for (int stream = 0; stream < 2; ++stream) {
        ssize_t n = 1;
        while (r.pipe[stream] >= 0 && r.drain.budget > 0 && (n = take(stream, BLOCK)) > 0) {
            came = true;
            r.drain.budget -= earlier(r.drain.budget, (uint64_t)n);
        }
        full |= n == spool_full;
    }
    const uint64_t now = now_ns();
    if (r.kill.active && !r.kill.gave_up) {
        r.drain.next_scan = NEVER; // the end is told when the tree is: kill_step() has the clock
        r.drain.until = now + DRAIN_LIMIT;
    } else if (at_eof()) {
        end_now(phase_finished);
    } else if (full && r.kill_reason_set) {
        // A deadline or a cancel waits for no acknowledgement.
        for (int stream = 0; stream < 2; ++stream) {
            int waiting = 0;
            if (r.pipe[stream] >= 0 && ioctl(r.pipe[stream], FIONREAD, &waiting) == 0)
                spool_lose(r.spool, (uint64_t)waiting);
        }
        end_now(phase_finished);
    } else if (full) {
        r.drain.until = now + DRAIN_LIMIT; // helpers that we hold up are not late
        r.drain.next_scan = NEVER;
    } else if (r.childless || r.drain.budget == 0 || now >= r.drain.until) {
        take_the_rest();
    } else if (came) {
        r.drain.quiet = 0;
        r.drain.next_scan = now;
    } else if (now >= r.drain.next_scan || r.drain.next_scan == NEVER) {
        // A helper may have handed over to one that was looked at before: only the second look
        // counts.
        if (tree_scan(&r.tree, getpid(), 0) != 0 || tree_busy(&r.tree)) {
            r.drain.quiet = 0;
            r.drain.next_scan = now_ns() + r.drain.pause;
            if (r.drain.pause < 16 * MS) r.drain.pause *= 2;
        } else if (++r.drain.quiet < 2) {
            r.drain.next_scan = now;
        } else {
            take_the_rest();
        }
    }
}

static void main_ended(int status) {
    r.main = 0;
    r.outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    r.outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : -1;
    r.outcome.reason = r.kill_reason_set ? r.kill_reason : reason_exited;
    r.phase = draining;
    r.deadline = NEVER;
    const uint64_t now = now_ns();
    r.drain.until = now + DRAIN_LIMIT;
    r.drain.next_scan = now;
    r.drain.pause = MS;
    r.drain.budget = DRAIN_BYTES;
    spool_open_reserve(r.spool);
}

static void reap(void) {
    const bool before_end = r.phase == running;
    for (;;) {
        int status;
        const pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0 && pid == r.main) main_ended(status);
        if (pid > 0 || (pid < 0 && errno == EINTR)) continue;
        if (pid < 0) r.childless = true;
        break;
    }
    if (!before_end || r.phase != draining) return;
    drain_step();
    // Not over at once: the exit code is kept where it outlives us.
    if (r.phase == draining) {
        describe_end();
        write_claim(phase_exited);
    }
}

// -- killing

static void kill_answer(bool confirmed) {
    for (int i = 0; i < CONNECTIONS; ++i) {
        struct connection* c = &r.connections[i];
        if (c->fd < 0 || !c->waits_kill) continue;
        c->waits_kill = false;
        const uint64_t v[] = {confirmed, c->was, confirmed ? 0 : r.tree.n,
                              confirmed ? 0 : (uint64_t)r.kill.error};
        answer(c, wire_killed, v, 4, NULL, 0);
    }
}

static void kill_step(void) {
    if (!r.kill.active) return;
    const uint64_t now = now_ns();
    if (r.childless) {
        r.kill.active = false;
        kill_answer(true);
        return;
    }
    if (now >= r.kill.at) {
        r.kill.grace = false;
        r.kill.error = tree_kill(&r.tree, getpid(), 0);
        if (r.kill.pause < 64 * MS) r.kill.pause *= 2;
        r.kill.at = now_ns() + r.kill.pause;
    }
    if (now >= r.kill.until) {
        kill_answer(false);
        r.kill.gave_up = true;
        r.kill.until = NEVER; // goes on trying
    }
}

static void kill_begin(enum reason reason, int signal, uint64_t grace_ms, uint64_t confirm_ms) {
    const uint64_t now = now_ns();
    if (r.phase == running && !r.kill_reason_set) {
        r.kill_reason_set = true;
        r.kill_reason = reason;
    }
    const bool gentle =
        signal != 0 && signal != SIGKILL && !r.childless && (!r.kill.active || r.kill.grace);
    if (gentle && tree_scan(&r.tree, getpid(), 0) == 0) {
        r.kill.error = tree_signal(&r.tree, signal);
        tree_signal(&r.tree, SIGCONT); // what is stopped would not see it
    }
    const uint64_t at = gentle ? now + grace_ms * MS : now;
    r.kill.at = r.kill.active ? earlier(r.kill.at, at) : at;
    r.kill.grace = gentle;
    r.kill.active = true;
    r.kill.gave_up = false;
    r.kill.pause = MS;
    r.kill.until = r.kill.at + confirm_ms * MS;
    kill_step();
}

// -- requests

static void answer_fed(struct connection* c, enum wire_stdin_state state) {
    const uint64_t v[] = {state, r.feed.accepted, r.feed.written};
    answer(c, wire_fed, v, 3, NULL, 0);
}

static void feed_progress(void) {
    for (int i = 0; i < CONNECTIONS; ++i) {
        struct connection* c = &r.connections[i];
        if (c->fd < 0 || !c->waits_feed) continue;
        if (r.feed.written < c->waits_feed && r.phase != ended) continue;
        c->waits_feed = 0;
        answer_fed(c, r.phase == ended ? stdin_ended : feed_state(&r.feed));
    }
}

static void offer_stdin(struct connection* c, const struct wire* head, int fd) {
    enum wire_stdin_state state;
    if (r.phase == ended) {
        if (fd >= 0) close(fd);
        state = stdin_ended;
    } else {
        state = feed_offer(&r.feed, head->v[0], fd >= 0 ? head->v[1] : 0, head->v[2] != 0, fd,
                           head->v[3]);
    }
    const uint64_t end = head->v[0] + head->v[1];
    const bool accepted = (state == stdin_open || state == stdin_none) && end <= r.feed.accepted &&
                          end > r.feed.written;
    answer_fed(c, state);
    if (accepted) c->waits_feed = end;
}

static void tell_status(struct connection* c) {
    struct wire_status_reply reply = {
        .pid = r.main, .code = r.outcome.code, .signal = r.outcome.signal};
    memcpy(reply.id, r.order->id, strlen(r.order->id));
    if (r.childless || tree_scan(&r.tree, getpid(), 0) != 0) r.tree.n = 0;
    const char* state = r.phase == running    ? "running"
                        : r.phase == draining ? "draining"
                        : r.childless         ? "ended"
                                              : "background";
    memcpy(reply.state, state, strlen(state));
    const char* reason = r.phase == running ? "" : reason_names[r.outcome.reason];
    memcpy(reply.reason, reason, strlen(reason));
    reply.descendants = (uint32_t)r.tree.n;
    for (int i = 0; i < CONNECTIONS; ++i)
        reply.followed |= r.connections[i].follower;
    reply.age_ms = r.started_at ? (now_ns() - r.started_at) / MS : 0;
    reply.pos = spool_end(r.spool);
    reply.start = spool_start(r.spool);
    answer(c, wire_told, NULL, 0, &reply, sizeof reply);
}

static void acknowledge_here(struct connection* c, uint64_t pos, bool done) {
    if (pos > r.acked) r.acked = pos;
    attended();
    if (done && r.phase == ended) {
        if (!r.forgotten) claim_remove(r.order->id);
        r.forgotten = true;
    }
    release();
    for (int i = 0; i < CONNECTIONS; ++i)
        r.connections[i].told_full = false;
    const uint64_t v[] = {r.forgotten};
    answer(c, wire_acked, v, 1, NULL, 0);
}

static bool is_meant(struct connection* c, const struct wire* head, char* payload, size_t n) {
    if (n == 0 || payload[n - 1] != '\0') return false;
    const size_t id_length = strlen(payload);
    if (head->type == wire_status && id_length == 0) return true;
    if (strcmp(payload, r.order->id) != 0) {
        refuse(c, EEXIST, "socket_failed", "collision");
        return false;
    }
    const char* digest = id_length + 1 < n ? payload + id_length + 1 : "";
    if (*digest && *r.order->digest && strcmp(digest, r.order->digest) != 0) {
        refuse(c, 0, "id_in_use", "digest");
        return false;
    }
    return true;
}

static void listen_to(struct connection* c) {
    struct wire head;
    char payload[512];
    size_t n;
    int fd;
    const int error = wire_receive(c->fd, &head, payload, sizeof payload, &n, &fd);
    if (error == EAGAIN) return;
    if (error) {
        if (error == EPROTONOSUPPORT) refuse(c, error, "protocol", "version");
        if (c->fd >= 0) drop(c);
        if (fd >= 0) close(fd);
        return;
    }
    if (fd >= 0 && head.type != wire_stdin) {
        close(fd);
        fd = -1;
    }
    if (head.type == wire_next) {
        if (!c->follower || head.v[0] != c->at.pos) {
            drop(c);
            return;
        }
        c->waiting = true;
        c->printed = head.v[0];
        release();
        return;
    }
    if (!is_meant(c, &head, payload, n)) {
        if (fd >= 0) close(fd);
        return;
    }
    switch (head.type) {
    case wire_attach:
        attach(c, head.v[0]);
        break;
    case wire_ack:
        acknowledge_here(c, head.v[0], head.v[1] != 0);
        break;
    case wire_kill:
        c->waits_kill = true;
        c->was = r.phase == running ? was_running : was_ended;
        kill_begin(reason_cancelled, (int)head.v[0], head.v[1], head.v[2]);
        break;
    case wire_stdin:
        offer_stdin(c, &head, fd);
        break;
    case wire_status:
        tell_status(c);
        break;
    default:
        drop(c);
    }
}

static void add_connection(int fd) {
    for (int i = 0; i < CONNECTIONS; ++i) {
        if (r.connections[i].fd >= 0) continue;
        r.connections[i] = (struct connection){.fd = fd};
        return;
    }
    close(fd);
}

static void accept_all(void) {
    int fd;
    while ((fd = accept4(r.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        if (wire_peer_allowed(fd))
            add_connection(fd);
        else
            close(fd);
    }
}

// -- the loop

static void discard_late_output(int stream) {
    static char thrown_away[BLOCK];
    const ssize_t n = read(r.pipe[stream], thrown_away, sizeof thrown_away);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) close_pipe(stream);
    if (n > 0) r.late_at = now_ns() + (uint64_t)n * 1000 * MS / LATE_BYTES_PER_SECOND;
}

static bool may_leave(void) {
    return r.phase == ended && r.forgotten && r.childless && at_eof() && !r.kill.active;
}

static void turn(void) {
    struct pollfd polls[5 + CONNECTIONS];
    uint64_t now = now_ns(), wake = NEVER;

    const bool taking = r.phase != ended;
    bool room = !taking || spool_has_room(r.spool);
    const uint64_t grace = r.order->spool_grace_ms * MS;
    if (room && !r.dropping) r.full_since = 0;
    if (!room) {
        if (!r.full_since) r.full_since = now;
        if (now >= r.full_since + grace) r.dropping = true;
        if (r.dropping) {
            drop_oldest();
            room = spool_has_room(r.spool);
        }
        // Also because the disk may have room again.
        if (!room) wake = earlier(now + 1000 * MS, r.full_since + grace);
    }
    const bool throttled = r.phase == ended && now < r.late_at;
    if (throttled && !at_eof()) wake = earlier(wake, r.late_at);
    wake = earlier(wake, r.deadline);
    if (r.phase == draining && room)
        wake = earlier(wake, earlier(r.drain.until, r.drain.next_scan));
    if (r.kill.active) wake = earlier(wake, earlier(r.kill.at, r.kill.until));
    if (r.phase == ended && !r.forgotten) wake = earlier(wake, r.forget_at);

    polls[0] = (struct pollfd){.fd = r.signals, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = r.listener, .events = POLLIN};
    for (int stream = 0; stream < 2; ++stream)
        polls[2 + stream] =
            (struct pollfd){.fd = room && !throttled ? r.pipe[stream] : -1, .events = POLLIN};
    polls[4] =
        (struct pollfd){.fd = r.feed.to, .events = r.feed.written < r.feed.accepted ? POLLOUT : 0};
    for (int i = 0; i < CONNECTIONS; ++i)
        polls[5 + i] = (struct pollfd){.fd = r.connections[i].fd, .events = POLLIN};

    struct timespec pause = {0, 0};
    if (wake > now) {
        pause.tv_sec = (time_t)((wake - now) / 1000000000u);
        pause.tv_nsec = (long)((wake - now) % 1000000000u);
    }
    if (ppoll(polls, 5 + CONNECTIONS, wake == NEVER ? NULL : &pause, NULL) < 0) return;

    // Output before the news of the end, so that mostly nothing is left to be drained then.
    for (int stream = 0; stream < 2; ++stream) {
        if (!polls[2 + stream].revents || r.pipe[stream] < 0) continue;
        if (r.phase == ended)
            discard_late_output(stream);
        else if (r.phase == running)
            take(stream, BLOCK);
    }
    if (polls[4].revents) {
        if (polls[4].revents & POLLERR)
            feed_broken(&r.feed);
        else
            feed_step(&r.feed);
    }
    if (polls[0].revents) {
        struct signalfd_siginfo info;
        while (read(r.signals, &info, sizeof info) > 0) {
        }
        reap();
    }
    if (polls[1].revents) accept_all();
    for (int i = 0; i < CONNECTIONS; ++i)
        if (polls[5 + i].revents && r.connections[i].fd == polls[5 + i].fd &&
            r.connections[i].fd >= 0)
            listen_to(&r.connections[i]);

    now = now_ns();
    if (r.phase == running && now >= r.deadline) {
        r.deadline = NEVER;
        kill_begin(reason_timed_out, r.order->kill_grace_ms ? SIGTERM : SIGKILL,
                   r.order->kill_grace_ms, 5000);
    }
    kill_step();
    if (r.phase == draining) drain_step();
    feed_progress();
    if (r.phase == ended && now >= r.forget_at)
        r.forgotten = true; // the claim stays and tells the outcome
    if (r.phase == ended && r.forgotten) spool_release(r.spool, UINT64_MAX);
    serve_all();
}

static _Noreturn void reject(struct connection* own, enum wire_type type) {
    answer(own, type, NULL, 0, NULL, 0);
    _exit(0);
}

static _Noreturn void give_up(struct connection* own, int error, const char* name, const char* at,
                              bool claimed) {
    if (claimed) claim_remove(r.order->id);
    refuse(own, error, name, at);
    _exit(0);
}

static void make_claim(struct connection* own) {
    r.claim = (struct claim){.phase = phase_claimed, .runner = getpid(), .end = r.outcome};
    memcpy(r.claim.boot, facts_boot, sizeof facts_boot);
    memcpy(r.claim.digest, r.order->digest, strlen(r.order->digest));
    const char* at = "claim";
    int error = claim_create(r.order->id, &r.claim, &r.claim_fd, &at);
    if (error == EEXIST) {
        struct claim old;
        if (claim_read(r.order->id, &old) != 0 || old.phase != phase_claimed)
            reject(own, wire_found);
        if (*old.digest && *r.order->digest && strcmp(old.digest, r.order->digest) != 0)
            give_up(own, 0, "id_in_use", "digest", false);
        // Its runner died before it started anything, and cannot come back: we hold the socket.
        error = claim_open(r.order->id, O_RDWR, &r.claim_fd);
        if (!error) error = claim_write(r.claim_fd, &r.claim);
    }
    if (error) give_up(own, error, "claim_failed", at, false);
}

static void start(struct connection* own, int null_fd) {
    int stdin_file = -1;
    struct stat status = {0};
    if (r.order->stdin_kind == feed_file) {
        stdin_file = open(r.order->stdin_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (stdin_file < 0 || fstat(stdin_file, &status) != 0 || !S_ISREG(status.st_mode))
            give_up(own, stdin_file < 0 ? errno : EINVAL, "stdin_failed", "open", true);
    }
    r.claim.phase = phase_started;
    const int error = claim_write(r.claim_fd, &r.claim);
    if (error) give_up(own, error, "claim_failed", "claim", true);
    struct launched launched;
    r.started_at = now_ns();
    launch(r.order, null_fd, &launched);
    if (stdin_file >= 0 && r.order->unlink_stdin) unlink(r.order->stdin_path);
    if (!launched.pid) {
        if (stdin_file >= 0) close(stdin_file);
        r.childless = true;
        r.outcome.reason = reason_failed;
        r.outcome.started = false;
        r.outcome.error = launched.error;
        memcpy(r.outcome.at, launched.at, strlen(launched.at) + 1);
        end_now(phase_failed);
        return;
    }
    r.main = r.claim.main = launched.pid;
    claim_write(r.claim_fd, &r.claim); // so that it can be killed without us
    r.pipe[0] = launched.out;
    r.pipe[1] = launched.err;
    r.cwd_error = launched.cwd_error;
    r.cwd = launched.cwd;
    r.feed.to = launched.in;
    r.feed.open_ended = r.order->stdin_kind == feed_open;
    if (r.order->stdin_kind != feed_none && r.order->stdin_kind != feed_open)
        feed_whole(&r.feed, stdin_file, r.order->stdin_data,
                   stdin_file >= 0 ? (uint64_t)status.st_size : r.order->stdin_size);
    if (r.order->timeout_ms) r.deadline = r.started_at + r.order->timeout_ms * MS;
}

void runner(const struct order* order, int own_fd) {
    r.order = order;
    r.claim_fd = r.pipe[0] = r.pipe[1] = r.feed.to = r.feed.from = -1;
    r.deadline = r.forget_at = NEVER;
    r.outcome = (struct outcome){.started = true, .code = -1, .signal = -1};
    for (int i = 0; i < CONNECTIONS; ++i)
        r.connections[i].fd = -1;
    struct connection* own = &r.connections[0];
    own->fd = own_fd;

    int error = wire_listen(order->id, &r.listener);
    if (error == EADDRINUSE) reject(own, wire_taken);
    if (error) give_up(own, error, "socket_failed", "bind", false);
    fcntl(r.listener, F_SETFL, O_NONBLOCK);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    r.signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (r.signals < 0) give_up(own, errno, "spawn_failed", "signalfd", false);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    r.spool = spool_make(order->spool_cap);
    if (!r.spool) give_up(own, ENOMEM, "spawn_failed", "memory", false);

    make_claim(own);
    // Whoever made us reads along from the start.
    own->follower = own->waiting = true;
    const uint64_t v[] = {1, 0, 0, 0};
    answer(own, wire_state, v, 4, NULL, 0);
    start(own, 0);
    if (chdir("/") != 0) {
        // Only to hold no directory busy.
    }
    while (!may_leave())
        turn();
    _exit(0);
}
