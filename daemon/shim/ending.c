// The end of a command, and killing it.
//
// When the main process has ended, helpers may still be writing (`exec > >(tee log)`). So long as
// not both pipes are at EOF, the end waits while any process of the command is running or in disk
// sleep, up to a limit; then it takes what the pipes hold, once. A kill stops from the top down and
// kills until nobody is left; the end is told after that.
#include "runner.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DRAIN_LIMIT (300 * MS)   // for helpers that are still at work when the command has ended
#define DRAIN_BYTES (4ull << 20) // and for what they may write meanwhile: `yes &` never runs dry

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

void end_now(enum phase phase) {
    r.phase = ended;
    describe_end();
    serve_all(); // the answer first: it is what somebody waits for
    write_claim(phase);
    for (int i = 0; i < 4; ++i)
        if (r.order->cleanup[i]) unlink(r.order->cleanup[i]);
    r.forget_at = now_ns() + r.order->linger_s * 1000 * MS;
}

void close_pipe(int stream) {
    close(r.pipe[stream]);
    r.pipe[stream] = -1;
}

bool at_eof(void) {
    return r.pipe[0] < 0 && r.pipe[1] < 0;
}

// Takes at most `most` bytes; false: nothing came or nothing can be taken now.
ssize_t take(int stream, size_t most) {
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

void drain_step(void) {
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

void reap(void) {
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

void kill_step(void) {
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

void kill_begin(enum reason reason, int signal, uint64_t grace_ms, uint64_t confirm_ms) {
    const uint64_t now = now_ns();
    if (r.phase == running && !r.kill_reason_set) {
        r.kill_reason_set = true;
        r.kill_reason = reason;
    }
    const bool gentle =
        signal != 0 && signal != SIGKILL && !r.childless && (!r.kill.active || r.kill.grace);
    if (!r.kill.active) r.kill.signals = 0;
    // The same one again comes of a call whose answer was lost. What handles it gets it once.
    const uint64_t bit = gentle ? UINT64_C(1) << (signal & 63) : 0;
    if (gentle && !(r.kill.signals & bit) && tree_scan(&r.tree, getpid(), 0) == 0) {
        r.kill.signals |= bit;
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
