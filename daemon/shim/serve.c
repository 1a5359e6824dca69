// The connections of a runner: what followers get, and what others ask for.
//
// There is a bounded number of them. Followers never take the last places, and where there are too
// many of them the one that has been silent for the longest is ended: platforms leave followers
// behind whose connections are long gone, and those must not keep out the one that is read.
//
// Bytes are released when the daemon has acknowledged them *and* no follower holds them: followers
// read the spool's file themselves. A follower that the daemon has overtaken is ended. Nothing here
// waits: a connection that does not take its answer is dropped. Requests come from processes of the
// same user only, but are checked like any input.
#include "runner.h"

#include <sys/socket.h>
#include <unistd.h>

#define TOO_LONG 1000000000ull // ms
#define STAY (2000 * MS)       // of a follower, before another one may take its place

void drop(struct connection* c) {
    close(c->fd);
    c->fd = -1;
    c->follower = false;
}

void answer(struct connection* c, enum wire_type type, const uint64_t* v, unsigned count,
            const void* payload, size_t n) {
    if (c->fd >= 0 && wire_send(c->fd, type, v, count, 0, payload, n, -1) != 0) drop(c);
}

void refuse(struct connection* c, int error, const char* name, const char* at) {
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

void serve_all(void) {
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

void drop_oldest(void) {
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

// Each stays for a while, so that more than there is room for take turns, instead of chasing one
// another away before anything is sent.
static bool find_place(const struct connection* newcomer) {
    const uint64_t now = now_ns();
    unsigned followers = 0;
    struct connection* silent = NULL;
    for (int i = 0; i < CONNECTIONS; ++i) {
        struct connection* c = &r.connections[i];
        if (!c->follower || c == newcomer) continue;
        ++followers;
        if (now >= c->since + STAY && (!silent || c->heard < silent->heard)) silent = c;
    }
    if (followers < FOLLOWERS) return true;
    if (!silent) return false;
    supersede(silent);
    return true;
}

static void attach(struct connection* c, uint64_t from, bool unattended) {
    if (from > spool_end(r.spool)) {
        refuse(c, EINVAL, "bad_offset", "FROM");
        return;
    }
    if (!find_place(c)) {
        refuse(c, EBUSY, "busy", "followers");
        return;
    }
    // Before `start` only the position is known: the gap that follows brings the offsets.
    if (!spool_seek(r.spool, from, &c->at)) {
        spool_first(r.spool, &c->at);
        c->at.pos = from;
    }
    c->follower = c->waiting = true;
    c->printed = from;
    c->since = c->heard = now_ns();
    if (!unattended) attended();
    const uint64_t v[] = {0, from, c->at.off[0], c->at.off[1], r.order->spool_cap};
    answer(c, wire_state, v, 5, NULL, 0);
}
// -- requests

static void answer_fed(struct connection* c, enum wire_stdin_state state) {
    const uint64_t v[] = {state, r.feed.accepted, r.feed.written};
    answer(c, wire_fed, v, 3, NULL, 0);
}

void feed_progress(void) {
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

void listen_to(struct connection* c) {
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
        c->heard = now_ns();
        release();
        return;
    }
    if (!is_meant(c, &head, payload, n)) {
        if (fd >= 0) close(fd);
        return;
    }
    switch (head.type) {
    case wire_attach:
        attach(c, head.v[0], head.v[1] != 0);
        break;
    case wire_ack:
        acknowledge_here(c, head.v[0], head.v[1] != 0);
        break;
    case wire_kill:
        c->waits_kill = true;
        c->was = r.phase == running ? was_running : was_ended;
        kill_begin(reason_cancelled, (int)(head.v[0] & 127), earlier(head.v[1], TOO_LONG),
                   earlier(head.v[2], TOO_LONG));
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
    // Closed without a word it would look as if we had ended.
    struct connection turned_away = {.fd = fd};
    refuse(&turned_away, EBUSY, "busy", "connections");
    if (turned_away.fd >= 0) drop(&turned_away);
}

void accept_all(void) {
    int fd;
    while ((fd = accept4(r.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        if (wire_peer_allowed(fd))
            add_connection(fd);
        else
            close(fd);
    }
}
