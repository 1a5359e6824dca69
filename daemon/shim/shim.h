// Declarations shared by the parts of the shim. See frames.h for what it is and does.
//
// Processes: the *follower* is what the platform executes; it forks the *runner* through a middle
// process (run.c). Each is single-threaded and owns its memory. Errors are errno values, returned
// positive by `int` functions unless said otherwise; the first one met is the one reported.
#pragma once

#include "frames.h"

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#ifndef SHIM_BUILD
#define SHIM_BUILD "unknown"
#endif

#define BLOCK 65536u // unit of the spool; the most one data frame holds

// -- lz4.c

// The size of `n` bytes packed into an LZ4 block; 0 = it would take more than `room`.
size_t lz4_pack(const uint8_t* from, size_t n, uint8_t* to, size_t room);

// -- text.c: numbers, encodings, and the frames on stdout

struct text {
    char* at;
    size_t n, room; // what does not fit is cut: callers size their buffers for the worst case
};
void put(struct text* to, const char* s);
void put_char(struct text* to, char c);
void put_u64(struct text* to, uint64_t value);
void put_i64(struct text* to, int64_t value);
void put_hex(struct text* to, uint64_t value);
void put_quoted(struct text* to, const char* s, size_t n); // percent-encoded, see frames.h

bool parse_u64(const char* s, uint64_t* value);           // decimal, whole string, below 2^63
bool unquote(const char* from, char* to, size_t* length); // `to` may be `from`; ends with NUL
size_t base64_size(size_t n);
void base64_encode(const uint8_t* from, size_t n, char* to);
bool base64_decode(const char* from, uint8_t* to, size_t* length); // `to` may be `from`
bool is_plain(const uint8_t* data, size_t n);                      // may travel as frame kind r
bool is_id(const char* s);
bool is_digest(const char* s);

// Frames are collected and written by frame_flush(); a full buffer flushes itself. When stdout is
// gone the process exits with 1.
void frame(const char* name);                    // begins a line
void frame_word(const char* word);               // goes on with it
void field(const char* key, const char* value);  // value of known-good characters
void field_text(const char* key, const char* s); // percent-encoded
void field_u64(const char* key, uint64_t value);
void field_opt(const char* key, int64_t value); // negative = "-"
void frame_end(void);
void frame_data(int stream, uint64_t pos, uint64_t off, const uint8_t* data, size_t n);
void frame_flush(void);
// After so long nobody is waited for any more: where stdout takes nothing the process exits with 0,
// in the middle of a frame if need be.
void frame_limit(uint64_t seconds);
bool frame_limit_reached(void);
uint64_t frame_bytes(void); // printed and collected so far
bool frame_pending(void);
_Noreturn void finish(int status);
_Noreturn void fail(const char* name, int error, const char* at, bool nothing_started);

uint64_t now_ns(void); // monotonic

// -- claim.c: the claim file of an id

enum phase {
    phase_none,
    phase_claimed,   // nothing was started yet
    phase_started,   // it may have been
    phase_exited,    // the main process has ended, its output is still being taken
    phase_finished,  // all is known
    phase_failed,    // could not be started
    phase_cancelled, // before it was started
};
enum reason { reason_exited, reason_timed_out, reason_cancelled, reason_failed };
extern const char* const phase_names[];
extern const char* const reason_names[];

struct outcome {
    enum reason reason;
    bool started;
    int code, signal; // -1 = none
    int error;        // errno of `failed`, else 0
    char at[16];
    uint64_t out, err, dropped, elapsed_ms;
    uint32_t background;
};

struct claim {
    enum phase phase;
    char boot[96];
    char digest[SHIM_DIGEST_MAX + 1];
    pid_t runner, main; // 0 = none
    struct outcome end;
};

void facts_gather(void); // boot and pid namespace; call once, first
extern char facts_boot[96];
extern uint64_t facts_pidns;
uint64_t process_start(pid_t pid); // start time in ticks; 0 = unknown

// Creates the claim; EEXIST where there is one. Makes the directory if need be. `at` names the step
// that failed. The descriptor stays open for claim_write().
int claim_create(const char* id, const struct claim* what, int* fd, const char** at);
int claim_open(const char* id, int flags, int* fd);
int claim_write(int fd, const struct claim* what);  // in place
int claim_read(const char* id, struct claim* what); // ENOENT: none; EBADMSG: not a claim
int claim_remove(const char* id);                   // or puts it into the reserve
int claims_prepare(const char** at);
void claims_reserve(void); // as far as there is room

// -- wire.c: what shim processes say to each other over the id's socket (SOCK_SEQPACKET)

enum wire_type {
    // requests; payload: id NUL digest NUL
    wire_attach = 1, // v0 = from, v1 = unattended; also asks for what follows it
    wire_next,       // v0 = position
    wire_ack,        // v0 = position, v1 = done
    wire_kill,       // v0 = signal, v1 = grace ms, v2 = confirm ms
    wire_stdin,      // v0 = offset, v1 = length, v2 = eof, v3 = start within the attached file
    wire_status,
    // answers
    wire_state = 32, // v0 = 1 if new, v1 = pos, v2 = out, v3 = err, v4 = most that is kept (0 =
                     // not said)
    wire_taken,      // to the follower of its own runner: somebody else has the socket
    wire_found,      // ... a claim exists; read it
    wire_data, // v0 = pos, v1 = out, v2 = err, v3 = runs, v4 = segments, v5 = bytes, v6 = start,
               // v7 = end; payload:
               // runs (u32 length << 1 | stream), segments (struct segment), inline bytes.
               // The first one that needs the spool file has its descriptor attached.
    wire_gap,  // v0 = pos, v1 = n, v2 = out, v3 = err
    wire_full, // v0 = start, v1 = end
    wire_note, // v0 = errno; payload: the directory
    wire_end,  // payload: struct outcome
    wire_superseded,
    wire_acked,  // v0 = 1 if gone
    wire_killed, // v0 = confirmed, v1 = enum wire_was, v2 = left, v3 = errno
    wire_fed,    // v0 = enum wire_stdin_state, v1 = accepted, v2 = written
    wire_told,   // status: struct wire_status_reply as payload
    wire_refused // error = errno, payload: name NUL at NUL (frames.h, `error`)
};
enum wire_was { was_running, was_ended };
enum wire_stdin_state {
    stdin_open,
    stdin_eof,
    stdin_closed,
    stdin_busy,
    stdin_early,
    stdin_none,
    stdin_ended
};

struct wire {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    int32_t error;
    uint32_t flags; // wire_data: 1 = also half full or more
    uint64_t v[8];
};
#define WIRE_MAGIC 0x78736453u
#define WIRE_VERSION 1
#define WIRE_PAYLOAD (BLOCK + 16384u)
#define WIRE_RUNS 1024u
#define WIRE_SEGMENTS 16u

struct segment {
    uint64_t at; // in the spool file
    uint32_t length, unused;
};

struct wire_status_reply {
    char id[SHIM_ID_MAX + 1];
    char state[16], reason[16];
    int32_t pid, code, signal;
    uint32_t descendants, followed;
    uint64_t age_ms, pos, start;
};

// 0 or errno; EADDRINUSE: somebody has it.
int wire_listen(const char* id, int* fd);
// ECONNREFUSED: nobody there. EPERM: it belongs to another user.
int wire_connect(const char* id, int* fd);
int wire_connect_name(const char* name, size_t length, int* fd);
bool wire_peer_allowed(int fd);
size_t wire_prefix(char* to,
                   size_t room); // of the names of this sandbox, as in /proc/net/unix, with '@'
// `fd` < 0: none. Non-blocking if the socket is.
int wire_send(int sock, enum wire_type type, const uint64_t* v, unsigned count, uint32_t flags,
              const void* payload, size_t n, int fd);
int wire_request(int sock, enum wire_type type, const uint64_t* v, unsigned count, const char* id,
                 const char* digest, int fd);
// EPIPE: the other side is gone. `*fd` gets a descriptor or -1.
int wire_receive(int sock, struct wire* head, void* payload, size_t room, size_t* n, int* fd);

// -- tree.c: the descendants of this process, and ending them

struct process {
    pid_t pid, parent, session;
    uint64_t start;
    char state;
    bool ours;
};
struct tree {
    struct process* list;
    size_t n, room;
};
// Fills the list with the live (not zombie) descendants of `root` (0: with the members of `session`
// and their descendants). ENOMEM, or errno of opening /proc.
int tree_scan(struct tree* tree, pid_t root, pid_t session);
bool tree_busy(const struct tree* tree);              // any thread is running or in disk sleep
int tree_signal(const struct tree* tree, int signal); // first errno but ESRCH
// Stops them from the top down until no new ones appear, then sends SIGKILL. First errno but ESRCH.
int tree_kill(struct tree* tree, pid_t root, pid_t session);

// -- spool.c: the output that is kept; see there

struct cursor {
    uint64_t pos, off[2], run;
};
struct spool;
struct spool* spool_make(uint64_t cap);
int spool_probe(void); // errno of making the file
enum { spool_full = -1000 };
// Moves up to `most` bytes from the pipe into the spool; 0 = EOF, spool_full = no room and nothing
// read, else -errno.
ssize_t spool_take(struct spool* spool, int fd, int stream, size_t most);
bool spool_has_room(struct spool* spool);
// From now on a little more than the cap is kept: the command has ended, and what its pipes hold
// must not wait for an acknowledgement.
void spool_open_reserve(struct spool* spool);
void spool_lose(struct spool* spool, uint64_t n); // counts bytes that were never taken as dropped
uint64_t spool_start(const struct spool* spool);
uint64_t spool_end(const struct spool* spool);
uint64_t spool_off(const struct spool* spool, int stream);
uint64_t spool_dropped(const struct spool* spool);
bool spool_half_full(const struct spool* spool);
void spool_release(struct spool* spool, uint64_t upto);
void spool_drop_oldest(struct spool* spool);
void spool_first(const struct spool* spool, struct cursor* at);
bool spool_seek(const struct spool* spool, uint64_t pos, struct cursor* at); // false: not kept
// Sends what there is from the cursor on as one wire_data and advances it. 0 or errno.
int spool_send(struct spool* spool, struct cursor* at, int sock, bool* file_passed);

// -- launch.c: starting the command

struct order { // what `run` was asked for; strings live as long as the process
    const char* id;
    const char* digest;
    char** argv;
    char** env;
    const char* cwd; // NULL = as it is
    bool merge;
    enum { feed_none, feed_empty, feed_open, feed_data, feed_file } stdin_kind;
    uint8_t* stdin_data;
    size_t stdin_size;
    const char* stdin_path;
    bool unlink_stdin;
    const char* cleanup[4];
    uint64_t timeout_ms, kill_grace_ms, spool_cap, spool_grace_ms, linger_s;
};
struct launched {
    pid_t pid;
    int out, err, in; // our ends, non-blocking; err = -1 when merged, in = -1 when not fed
    int error;        // 0, or why nothing runs
    const char* at;
    int cwd_error; // of order.cwd; the command is in `cwd` then
    const char* cwd;
};
void launch(const struct order* order, int null_fd, struct launched* result);

// -- runner.c, follow.c, verbs.c

_Noreturn void runner(const struct order* order, int follower); // a socket to the first follower

struct follow_options {
    const char* id;
    const char* digest;
    uint64_t from, max_seconds, max_bytes, keepalive_ms;
    bool starting; // called by run
    bool unattended;
    const char* marks; // text of the hello's mark fields
    const char** acks;
    unsigned ack_count;
};
void hello(const char* verb);
// Never returns. `sock` is connected. `own`: to the runner just made.
_Noreturn void follow(const struct follow_options* how, int sock, bool own);
// Connects, or tells what is known without a runner.
_Noreturn void follow_by_name(const struct follow_options* how);

_Noreturn void verb_kill(const char* id, const char* digest, int signal, uint64_t grace_ms,
                         uint64_t confirm_ms);
struct stdin_options {
    const char* id;
    uint64_t offset, wait_ms;
    uint8_t* data; // NULL = none
    size_t size;
    const char* path; // NULL = none
    bool unlink, eof;
};
_Noreturn void verb_stdin(const struct stdin_options* how);
_Noreturn void verb_ack(const char* id, uint64_t pos, bool done);
// EBUSY: the runner could not be told.
int acknowledge(const char* id, uint64_t pos, bool done, bool* nothing_left);
_Noreturn void verb_ps(void);
_Noreturn void verb_probe(void);
