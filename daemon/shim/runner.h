// The inside of the runner, shared by its parts: runner.c (start and loop), serve.c (connections),
// ending.c (the end of the command, and killing it). One process, one thread, one command: the
// state is a global.
#pragma once

#include "feed.h"

#define MS 1000000ull
#define NEVER UINT64_MAX
#define CONNECTIONS 128
#define FOLLOWERS (CONNECTIONS - 16) // the rest is for those who kill, acknowledge, feed and ask

struct connection {
    int fd; // -1 = free
    bool follower, waiting, told_full, told_note, file_passed;
    bool waits_kill;
    enum wire_was was;   // what the kill met
    uint64_t waits_feed; // position of stdin, 0 = not waiting
    uint64_t printed; // a follower's: unless it is waiting, it holds the bytes from here to at.pos
    uint64_t since, heard; // a follower's: when it came, and when it last asked for more
    struct cursor at;
};
enum runner_phase { running, draining, ended };
struct runner {
    const struct order* order;
    enum runner_phase phase;
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
        uint64_t signals; // that were sent since it is active, a bit each
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
};
extern struct runner r;

static inline uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// -- serve.c

void drop(struct connection* c);
// These drop a connection that does not take them.
void answer(struct connection* c, enum wire_type type, const uint64_t* v, unsigned count,
            const void* payload, size_t n);
void refuse(struct connection* c, int error, const char* name, const char* at);
void serve_all(void);     // gives each waiting follower what there is for it
void drop_oldest(void);   // gives up bytes of a full spool
void feed_progress(void); // answers those who wait for their stdin to be written
void listen_to(struct connection* c);
void accept_all(void);

// -- ending.c

ssize_t take(int stream, size_t most); // from a pipe into the spool; as spool_take(), closes at EOF
bool at_eof(void);
void close_pipe(int stream);
void end_now(enum phase phase); // tells the end, then writes it into the claim
void drain_step(void);
void reap(void);
void kill_begin(enum reason reason, int signal, uint64_t grace_ms, uint64_t confirm_ms);
void kill_step(void);
