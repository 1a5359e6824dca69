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
#include "runner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LATE_BYTES_PER_SECOND (1u << 20) // read and thrown away after the end

struct runner r;

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
        // The disk, or memory, may have room again.
        if (!room) wake = now + 1000 * MS;
        if (!r.dropping) wake = earlier(wake, r.full_since + grace);
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
    int connections = 0; // up to the last one in use
    for (int i = 0; i < CONNECTIONS; ++i) {
        polls[5 + i] = (struct pollfd){.fd = r.connections[i].fd, .events = POLLIN};
        if (r.connections[i].fd >= 0) connections = i + 1;
    }

    struct timespec pause = {0, 0};
    if (wake > now) {
        pause.tv_sec = (time_t)((wake - now) / 1000000000u);
        pause.tv_nsec = (long)((wake - now) % 1000000000u);
    }
    if (ppoll(polls, 5 + (nfds_t)connections, wake == NEVER ? NULL : &pause, NULL) < 0) return;

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
    for (int i = 0; i < connections; ++i)
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

// Nothing will be started for them: whoever put them there thinks that this call takes them.
static void remove_input(void) {
    if (r.order->unlink_stdin) unlink(r.order->stdin_path);
    for (int i = 0; i < 4; ++i)
        if (r.order->cleanup[i]) unlink(r.order->cleanup[i]);
}

static void make_claim(struct connection* own) {
    r.claim = (struct claim){.phase = phase_claimed, .runner = getpid(), .end = r.outcome};
    memcpy(r.claim.boot, facts_boot, sizeof facts_boot);
    memcpy(r.claim.digest, r.order->digest, strlen(r.order->digest));
    const char* at = "claim";
    int error = claim_create(r.order->id, &r.claim, &r.claim_fd, &at);
    if (error == EEXIST) {
        struct claim old = {.phase = phase_none};
        const bool known = claim_read(r.order->id, &old) == 0;
        if (known && old.phase > phase_started) remove_input();
        if (!known || old.phase != phase_claimed) reject(own, wire_found);
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
    fcntl(own_fd, F_SETFL, O_NONBLOCK);

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
    own->since = own->heard = now_ns();
    const uint64_t v[] = {1, 0, 0, 0, order->spool_cap};
    answer(own, wire_state, v, 5, NULL, 0);
    start(own, 0);
    if (chdir("/") != 0) {
        // Only to hold no directory busy.
    }
    while (!may_leave())
        turn();
    _exit(0);
}
