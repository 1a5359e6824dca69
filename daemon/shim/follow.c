// The follower: the process that the platform holds attached. It turns what the runner has into
// frames.
//
// It asks for one portion at a time, when the one before is printed: that is the whole flow
// control. It owns nothing that matters and may be killed at any time. It leaves when all is said,
// when its limits are reached (also while it waits for its reader), when a newer follower takes
// over, and at once when nobody reads its stdout any more.
#include "shim.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ull
#define HELLO_DELAY                                                                                \
    (2 * MS)                // the hello waits so long for company: most commands are one write then
#define CONNECT_PATIENCE 40 // ms; between bind and listen a runner refuses connections
#define DYING_PATIENCE 50   // ms; in which a connection to a dying runner breaks

static const struct follow_options* how;
static uint64_t pos, off[2];
static int spool_file = -1;
static uint64_t last_full;
static uint64_t kept_most; // by the runner; 0 = not said

static const char* arch(void) {
#if defined(__x86_64__)
    return "x86_64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "other";
#endif
}

void hello(const char* verb) {
    frame("deepinfra-shim/1 ");
    frame_word(verb);
    field_text("build", SHIM_BUILD);
    field("arch", arch());
    field_u64("uid", geteuid());
    field_text("boot", facts_boot);
}

static void hello_of(const char* state) {
    hello(how->starting ? "run" : "follow");
    field("id", how->id);
    field("state", state);
    field_u64("pos", pos);
    field_u64("out", off[0]);
    field_u64("err", off[1]);
    if (kept_most) field_u64("spool", kept_most);
    frame_word(how->marks);
    frame_end();
}

static void acknowledge_others(void) {
    for (unsigned i = 0; i < how->ack_count; ++i) {
        bool gone;
        acknowledge(how->acks[i], 0, true, &gone);
        frame("acked");
        field("id", how->acks[i]);
        field("state", gone ? "gone" : "running");
        frame_end();
    }
}

static void frame_exit(const struct outcome* end, bool kept) {
    frame("exit");
    field("reason", reason_names[end->reason]);
    field("started", end->started ? "yes" : "no");
    field_opt("code", end->code);
    field_opt("signal", end->signal);
    field_u64("pos", end->out + end->err);
    field_u64("out", end->out);
    field_u64("err", end->err);
    field_u64("dropped", end->dropped);
    field_u64("background", end->background);
    field_u64("elapsed_ms", end->elapsed_ms);
    field("output", kept ? "kept" : "gone");
    field_opt("errno", end->error ? end->error : -1);
    field_text("at", end->at);
    frame_end();
}

static void frame_gap(uint64_t from, uint64_t n, uint64_t out, uint64_t err) {
    frame("gap");
    field_u64("pos", from);
    field_u64("n", n);
    field_u64("out", out);
    field_u64("err", err);
    frame_end();
}

static _Noreturn void lost(const char* claim, const char* started, const char* boot,
                           const struct outcome* end) {
    frame("lost");
    field("claim", claim);
    field("started", started);
    field("boot", boot);
    field_opt("code", end ? end->code : -1);
    field_opt("signal", end ? end->signal : -1);
    frame_end();
    finish(0);
}

// What is known of an id that has no runner.
static _Noreturn void tell_by_claim(bool said_hello) {
    struct claim claim;
    const int error = claim_read(how->id, &claim);
    if (!said_hello) {
        pos = how->from;
        hello_of(error == ENOENT ? "none" : "dead");
        acknowledge_others();
    }
    if (error == ENOENT) lost("none", "unknown", "-", NULL);
    if (error) fail("claim_unreadable", error, "claim", false);
    if (*claim.digest && *how->digest && strcmp(claim.digest, how->digest) != 0)
        fail("id_in_use", 0, "digest", false);
    const char* boot = !*claim.boot ? "-" : strcmp(claim.boot, facts_boot) == 0 ? "same" : "other";
    switch (claim.phase) {
    case phase_claimed:
        lost("claimed", "no", boot, NULL);
    case phase_exited:
        lost("exited", "yes", boot, &claim.end);
    case phase_finished:
    case phase_failed:
    case phase_cancelled: {
        const uint64_t total = claim.end.out + claim.end.err;
        if (pos < total) frame_gap(pos, total - pos, claim.end.out, claim.end.err);
        frame_exit(&claim.end, pos >= total);
        finish(0);
    }
    default:
        lost("started", "unknown", boot, NULL);
    }
}

static _Noreturn void more(const char* why) {
    frame("more");
    field("why", why);
    field_u64("pos", pos);
    frame_end();
    finish(0);
}

static bool read_segment(const struct segment* segment, uint8_t* to) {
    for (uint32_t done = 0; done < segment->length;) {
        const ssize_t n =
            pread(spool_file, to + done, segment->length - done, (off_t)(segment->at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (uint32_t)n;
    }
    return true;
}

// Whether a newer follower has taken over, so that what was read from the file may be something
// else by now.
static bool is_superseded(int sock) {
    struct pollfd one = {sock, POLLIN, 0};
    return poll(&one, 1, 0) > 0;
}

static void print_runs(const uint32_t* runs, uint64_t count, const uint8_t* bytes, uint64_t total) {
    while (count-- > 0 && total > 0) {
        const int stream = (int)(*runs & 1);
        uint64_t n = *runs++ >> 1;
        if (n > total) n = total;
        total -= n;
        while (n > 0) {
            const uint64_t part = n < SHIM_FRAME_DATA_MAX ? n : SHIM_FRAME_DATA_MAX;
            frame_data(stream, pos, off[stream], bytes, part);
            pos += part;
            off[stream] += part;
            bytes += part;
            n -= part;
            if (how->max_bytes && frame_bytes() >= how->max_bytes) more("bytes");
            if (frame_limit_reached()) more("seconds");
        }
    }
}

static void print_data(int sock, const struct wire* head, const uint8_t* payload, size_t n) {
    static uint8_t from_file[WIRE_SEGMENTS * BLOCK];
    const uint64_t run_n = head->v[3], segment_n = head->v[4], total = head->v[5];
    const size_t runs_size = run_n <= WIRE_RUNS ? run_n * sizeof(uint32_t) : SIZE_MAX / 2;
    const size_t rest = segment_n > WIRE_SEGMENTS ? SIZE_MAX / 2
                        : segment_n               ? segment_n * sizeof(struct segment)
                                                  : total;
    if (head->v[0] != pos || runs_size > n || rest != n - runs_size || total > sizeof from_file)
        fail("protocol", EPROTO, "data", false);
    const uint8_t* bytes = payload + runs_size;
    if (segment_n > 0) {
        struct segment segments[WIRE_SEGMENTS];
        memcpy(segments, bytes, segment_n * sizeof *segments);
        uint64_t got = 0;
        for (uint64_t i = 0; i < segment_n; ++i) {
            if (segments[i].length > sizeof from_file - got ||
                !read_segment(&segments[i], from_file + got))
                fail("protocol", EIO, "spool", false);
            got += segments[i].length;
        }
        if (is_superseded(sock)) return;
        if (got != total) fail("protocol", EPROTO, "data", false);
        bytes = from_file;
    }
    print_runs((const uint32_t*)(const void*)payload, run_n, bytes, total);
    if (head->flags & 1 && pos - last_full >= 16 * BLOCK) {
        last_full = pos;
        frame("full");
        field_u64("pos", pos);
        field_u64("start", head->v[6]);
        field_u64("end", head->v[7]);
        frame_end();
    }
}

static void check(int sock, int error) {
    // Gone or taken over: what it last said, if anything, is in the socket.
    (void)sock;
    if (error && error != EPIPE && error != ECONNRESET && error != ENOTCONN)
        fail("socket_failed", error, "send", false);
}

static void ask_next(int sock) {
    const uint64_t v[] = {pos};
    check(sock, wire_send(sock, wire_next, v, 1, 0, NULL, 0, -1));
}

static void handle(int sock, const struct wire* head, const uint8_t* payload, size_t n, int fd,
                   bool* said_hello) {
    if (fd >= 0) {
        if (spool_file >= 0) close(spool_file);
        spool_file = fd;
    }
    switch (head->type) {
    case wire_state:
        pos = head->v[1];
        off[0] = head->v[2];
        off[1] = head->v[3];
        kept_most = head->v[4];
        hello_of(head->v[0] ? "new" : "attached");
        *said_hello = true;
        acknowledge_others();
        break;
    case wire_data:
        print_data(sock, head, payload, n);
        ask_next(sock);
        break;
    case wire_gap:
        frame_gap(head->v[0], head->v[1], head->v[2], head->v[3]);
        pos = head->v[0] + head->v[1];
        off[0] = head->v[2];
        off[1] = head->v[3];
        ask_next(sock);
        break;
    case wire_full:
        frame("full");
        field_u64("pos", pos);
        field_u64("start", head->v[0]);
        field_u64("end", head->v[1]);
        field("blocked", "yes");
        frame_end();
        ask_next(sock);
        break;
    case wire_note:
        frame("note");
        field("name", "cwd");
        field_u64("errno", head->v[0]);
        field_text("cwd", n > 0 && payload[n - 1] == '\0' ? (const char*)payload : "-");
        frame_end();
        break;
    case wire_end: {
        struct outcome end;
        if (n != sizeof end) fail("protocol", EPROTO, "end", false);
        memcpy(&end, payload, sizeof end);
        end.at[sizeof end.at - 1] = '\0';
        if (end.reason < reason_exited || end.reason > reason_failed)
            fail("protocol", EPROTO, "end", false);
        frame_exit(&end, true);
        finish(0);
    }
    case wire_superseded:
        more("superseded");
    case wire_refused: {
        const char* name = n > 0 && payload[n - 1] == '\0' ? (const char*)payload : "protocol";
        const char* at = n > 0 && strlen(name) + 1 < n ? name + strlen(name) + 1 : "-";
        if (!*said_hello) {
            pos = how->from;
            hello_of("none");
            acknowledge_others();
        }
        const bool nothing =
            how->starting && strcmp(name, "bad_offset") != 0 && strcmp(name, "id_in_use") != 0;
        fail(name, head->error, at, nothing);
    }
    default:
        break;
    }
}

// A runner that is being killed loses its descriptors one after another: for a moment its socket
// still takes connections that nobody will serve. A living one keeps a connection on which nothing
// was asked.
static bool runner_lives(void) {
    int again;
    if (wire_connect(how->id, &again)) return false;
    struct pollfd quiet = {.fd = again, .events = POLLIN};
    bool lives = poll(&quiet, 1, DYING_PATIENCE) == 0;
    if (!lives) { // or one that has no place for us says so
        struct wire head;
        char payload[64];
        size_t n;
        int fd;
        lives = wire_receive(again, &head, payload, sizeof payload, &n, &fd) == 0;
        if (fd >= 0) close(fd);
    }
    close(again);
    return lives;
}

static _Noreturn void connection_lost(bool own, bool said_hello) {
    const bool lives = runner_lives();
    if (lives && said_hello) more("superseded"); // the runner lives: it has only let go of us
    if (lives) {
        pos = how->from;
        hello_of("none");
        acknowledge_others();
        fail("busy", EBUSY, "attach", false);
    }
    struct claim claim;
    if (own && !said_hello && claim_read(how->id, &claim) == ENOENT) {
        hello_of("none");
        acknowledge_others();
        fail("runner_died", 0, "start", true);
    }
    tell_by_claim(said_hello);
}

void follow(const struct follow_options* options, int sock, bool own) {
    static uint8_t payload[WIRE_PAYLOAD];
    how = options;
    const uint64_t begin = now_ns();
    bool said_hello = false;
    uint64_t spoke = begin;
    if (how->max_seconds) frame_limit(how->max_seconds);
    if (!own) {
        const uint64_t v[] = {how->from, how->unattended};
        check(sock, wire_request(sock, wire_attach, v, 2, how->id, how->digest, -1));
    }
    for (;;) {
        const uint64_t now = now_ns();
        uint64_t wake = UINT64_MAX;
        if (frame_pending()) wake = begin + HELLO_DELAY > now ? begin + HELLO_DELAY : 0;
        if (how->keepalive_ms && spoke + how->keepalive_ms * MS < wake)
            wake = spoke + how->keepalive_ms * MS;
        if (how->max_seconds && begin + how->max_seconds * 1000 * MS < wake)
            wake = begin + how->max_seconds * 1000 * MS;
        struct timespec pause = {0, 0};
        if (wake > now) {
            pause.tv_sec = (time_t)((wake - now) / 1000000000u);
            pause.tv_nsec = (long)((wake - now) % 1000000000u);
        }
        // A pipe without a reader shows itself even if nothing is to be written.
        struct pollfd polls[2] = {{sock, POLLIN, 0}, {1, 0, 0}};
        const int ready = ppoll(polls, 2, wake == UINT64_MAX ? NULL : &pause, NULL);
        if (ready < 0) continue;
        if (polls[1].revents & (POLLERR | POLLHUP | POLLNVAL)) _exit(1);
        if (polls[0].revents) {
            struct wire head;
            size_t n = 0;
            int fd;
            const int error = wire_receive(sock, &head, payload, sizeof payload, &n, &fd);
            if (error == EPIPE) connection_lost(own, said_hello);
            if (error) fail("protocol", error, "receive", false);
            if (own && (head.type == wire_taken || head.type == wire_found)) {
                close(sock);
                follow_by_name(how);
            }
            handle(sock, &head, payload, n, fd, &said_hello);
            // Together with what follows if that is quick; the limits below count it either way.
            if (now_ns() >= begin + HELLO_DELAY) frame_flush();
            spoke = now_ns();
        } else if (ready == 0) {
            frame_flush();
        }
        const uint64_t later = now_ns();
        if (said_hello) {
            if (how->max_bytes && frame_bytes() >= how->max_bytes) more("bytes");
            if (how->max_seconds && later >= begin + how->max_seconds * 1000 * MS) more("seconds");
            if (how->keepalive_ms && later >= spoke + how->keepalive_ms * MS) {
                frame("alive");
                field_u64("pos", pos);
                frame_end();
                frame_flush();
                spoke = later;
            }
        }
    }
}

void follow_by_name(const struct follow_options* options) {
    how = options;
    for (int tries = 0;; ++tries) {
        int sock;
        const int error = wire_connect(how->id, &sock);
        if (!error) follow(options, sock, false);
        if (error != ECONNREFUSED) {
            pos = how->from;
            hello_of("dead");
            fail(error == EPERM ? "socket_foreign" : "socket_failed", error, "connect", false);
        }
        // A finished claim has no runner to wait for; the others may be about to have one.
        struct claim claim;
        if (tries >= CONNECT_PATIENCE / 2 ||
            (claim_read(how->id, &claim) == 0 && claim.phase > phase_exited))
            tell_by_claim(false);
        nanosleep(&(struct timespec){0, 2 * (long)MS}, NULL);
    }
}
