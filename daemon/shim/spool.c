// The output of one command that is kept until the daemon has it.
//
// One sequence of bytes in order of arrival, with stable positions, made of blocks of 64 KiB. The
// first block is in memory, so that short commands touch no file; later ones are slots of one
// unlinked file (immune to `rm -rf /tmp/*`, gone with the process), which grows by whole megabytes
// that are allocated when they are added, so that a full disk is met before output is taken, never
// after. Where the file cannot grow, up to 4 MiB more are kept in memory. Released slots are used
// again.
//
// An index tells which stream each run of bytes belongs to. It is entered before the bytes are.
//
// Owns its memory and its file for as long as the process lives. Single-threaded. Followers read
// the file themselves: slots they have been told of are used again only after release or loss of
// what they hold, which the runner orders (see runner.c).
#include "shim.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#ifndef O_TMPFILE
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif

#define MAX_BLOCKS 65536u          // 4 GiB: the largest cap
#define MEMORY_BLOCKS 64u          // 4 MiB
#define RESERVE_BLOCKS 4u          // what two pipes hold, and their unaligned ends
#define FILE_STEP 16u              // slots added at a time: 1 MiB
#define DISK_RESERVE (64ull << 20) // the file leaves so much of the disk to the sandbox
#define MAX_RUNS (512u * 1024)
#define IN_FILE 0x80000000u

struct spool {
    uint64_t start, end; // kept positions
    uint64_t off_start[2], off_end[2];
    uint64_t dropped;
    uint64_t portion; // most that is sent at once
    uint64_t cap_blocks;
    uint32_t reserve; // blocks in memory on top of everything, for the last output

    // where[b % MAX_BLOCKS] of block number b = position / BLOCK: memory slot or IN_FILE | file
    // slot
    uint32_t* where;
    uint64_t first_block, next_block;

    uint8_t* memory[MEMORY_BLOCKS + RESERVE_BLOCKS];
    uint32_t free_memory[MEMORY_BLOCKS + RESERVE_BLOCKS], free_memory_n, memory_n;

    int file; // -1 = none yet, -2 = cannot be made
    uint32_t* free_file;
    uint32_t free_file_n, file_n;
    uint64_t grow_again_at; // ns; after a failure
    uint8_t* scratch;       // one block on its way into the file

    // Runs: start << 1 | stream. runs[0] is number runs_base; it may begin before `start`.
    uint64_t* runs;
    size_t runs_n, runs_room;
    uint64_t runs_base;
};

static void* pages(size_t n) {
    void* at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct spool* spool_make(uint64_t cap) {
    static struct spool spool; // zero pages until used
    static uint64_t first_runs[64];
    static uint8_t first_block[BLOCK];
    spool.cap_blocks = cap / BLOCK < 1                ? 1
                       : cap / BLOCK > MAX_BLOCKS - 2 ? MAX_BLOCKS - 2
                                                      : cap / BLOCK;
    spool.portion = WIRE_SEGMENTS * BLOCK;
    spool.file = -1;
    spool.memory[0] = first_block;
    spool.free_memory_n = spool.memory_n = 1; // slot 0
    spool.runs = first_runs;
    spool.runs_room = sizeof first_runs / sizeof *first_runs;
    spool.where = pages(MAX_BLOCKS * sizeof *spool.where); // touched as needed
    return spool.where ? &spool : NULL;
}

uint64_t spool_start(const struct spool* s) {
    return s->start;
}
uint64_t spool_end(const struct spool* s) {
    return s->end;
}
uint64_t spool_off(const struct spool* s, int stream) {
    return s->off_end[stream];
}
uint64_t spool_dropped(const struct spool* s) {
    return s->dropped;
}

bool spool_half_full(const struct spool* s) {
    const uint64_t blocks = s->next_block - s->first_block;
    const bool no_file = s->file == -2 || s->grow_again_at != 0;
    const uint64_t room = no_file && s->file_n + MEMORY_BLOCKS < s->cap_blocks
                              ? s->file_n + MEMORY_BLOCKS
                              : s->cap_blocks;
    return blocks > 1 && blocks * 2 >= room;
}

static int make_file(void) {
    static const char* const places[] = {"/tmp", "/var/tmp"};
    for (int i = 0; i < 2; ++i) {
        int fd = open(places[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd >= 0) return fd;
        char path[64];
        struct text name = {path, 0, sizeof path - 1};
        put(&name, places[i]);
        put(&name, "/.deepinfra-shim-");
        put_i64(&name, getpid());
        path[name.n] = '\0';
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) {
            unlink(path);
            return fd;
        }
    }
    return -2;
}

int spool_probe(void) {
    errno = 0;
    const int fd = make_file();
    if (fd < 0) return errno ? errno : EIO;
    close(fd);
    return 0;
}

static bool allocate(int file, uint64_t from, uint64_t n) {
    struct statvfs disk;
    if (fstatvfs(file, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < DISK_RESERVE + n)
        return false;
    if (fallocate(file, 0, (off_t)from, (off_t)n) == 0) return true;
    if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
    static const uint8_t zeros[4096];
    for (uint64_t at = from; at < from + n; at += sizeof zeros)
        if (pwrite(file, zeros, sizeof zeros, (off_t)at) != (ssize_t)sizeof zeros) return false;
    return true;
}

static bool grow_file(struct spool* s) {
    if (s->file == -1) {
        s->file = make_file();
        if (s->file >= 0 && !(s->free_file = pages(MAX_BLOCKS * sizeof *s->free_file))) {
            close(s->file);
            s->file = -2;
        }
    }
    if (s->file < 0 || s->file_n + FILE_STEP > MAX_BLOCKS) return false;
    // The disk is asked again now and then: it may have room by then.
    if (s->grow_again_at && now_ns() < s->grow_again_at) return false;
    if (!s->scratch && !(s->scratch = pages(BLOCK))) return false;
    if (!allocate(s->file, (uint64_t)s->file_n * BLOCK, FILE_STEP * BLOCK)) {
        s->grow_again_at = now_ns() + 1000000000u;
        return false;
    }
    s->grow_again_at = 0;
    for (uint32_t i = 0; i < FILE_STEP; ++i)
        s->free_file[s->free_file_n++] = s->file_n + FILE_STEP - 1 - i;
    s->file_n += FILE_STEP;
    return true;
}

static bool take_memory(struct spool* s, uint32_t* slot) {
    if (s->free_memory_n > 0) {
        *slot = s->free_memory[--s->free_memory_n];
        return true;
    }
    if (s->memory_n == MEMORY_BLOCKS + s->reserve || !(s->memory[s->memory_n] = pages(BLOCK)))
        return false;
    *slot = s->memory_n++;
    return true;
}

// Whether there is a block for the byte at `end`, getting one if need be.
static bool secure(struct spool* s) {
    if (s->runs_n >= MAX_RUNS) return false;
    if (s->end / BLOCK < s->next_block) return true;
    if (s->next_block - s->first_block >= s->cap_blocks + s->reserve) return false;
    uint32_t slot;
    if (s->next_block == s->first_block && s->free_memory_n > 0) {
        slot = s->free_memory[--s->free_memory_n];
    } else if (s->free_file_n > 0 || grow_file(s)) {
        slot = s->free_file[--s->free_file_n] | IN_FILE;
    } else if (!take_memory(s, &slot)) {
        return false;
    }
    if (s->next_block == s->first_block) s->first_block = s->next_block = s->end / BLOCK;
    s->where[s->next_block++ % MAX_BLOCKS] = slot;
    return true;
}

void spool_open_reserve(struct spool* s) {
    s->reserve = RESERVE_BLOCKS;
}

void spool_lose(struct spool* s, uint64_t n) {
    s->dropped += n;
}

bool spool_has_room(struct spool* s) {
    return secure(s);
}

static bool enter_run(struct spool* s, int stream) {
    if (s->runs_n > 0 && (int)(s->runs[s->runs_n - 1] & 1) == stream) return true;
    if (s->runs_n == s->runs_room) {
        uint64_t* more = pages(s->runs_room * 2 * sizeof *more);
        if (!more) return false;
        memcpy(more, s->runs, s->runs_n * sizeof *more);
        if (s->runs_room > 64) munmap(s->runs, s->runs_room * sizeof *more);
        s->runs = more;
        s->runs_room *= 2;
    }
    s->runs[s->runs_n++] = s->end << 1 | (uint64_t)stream;
    return true;
}

ssize_t spool_take(struct spool* s, int fd, int stream, size_t most) {
    if (!secure(s)) return spool_full;
    const uint32_t slot = s->where[s->end / BLOCK % MAX_BLOCKS];
    const size_t inside = s->end % BLOCK;
    size_t room = BLOCK - inside;
    if (room > most) room = most;
    uint8_t* to = slot & IN_FILE ? s->scratch : s->memory[slot] + inside;
    ssize_t n;
    do
        n = read(fd, to, room);
    while (n < 0 && errno == EINTR);
    if (n < 0) return -errno;
    if (n == 0) return 0;
    if (slot & IN_FILE) {
        const off_t at = (off_t)((uint64_t)(slot & ~IN_FILE) * BLOCK + inside);
        for (ssize_t done = 0; done < n;) {
            const ssize_t w = pwrite(s->file, to + done, (size_t)(n - done), at + done);
            if (w > 0) {
                done += w;
                continue;
            }
            if (w < 0 && errno == EINTR) continue;
            // Allocated space that cannot be written to: the disk itself fails. The block moves
            // into memory.
            uint32_t moved;
            if (!take_memory(s, &moved)) return -EIO;
            for (size_t k = 0; k < inside;) {
                const ssize_t r =
                    pread(s->file, s->memory[moved] + k, inside - k, at - (off_t)inside + (off_t)k);
                if (r <= 0) return -EIO;
                k += (size_t)r;
            }
            memcpy(s->memory[moved] + inside, to, (size_t)n);
            s->where[s->end / BLOCK % MAX_BLOCKS] = moved;
            s->grow_again_at = now_ns() + 1000000000u;
            break;
        }
    }
    if (!enter_run(s, stream)) return -ENOMEM;
    s->end += (uint64_t)n;
    s->off_end[stream] += (uint64_t)n;
    return n;
}

static uint64_t run_end(const struct spool* s, size_t i) {
    return i + 1 < s->runs_n ? s->runs[i + 1] >> 1 : s->end;
}

void spool_release(struct spool* s, uint64_t upto) {
    if (upto > s->end) upto = s->end;
    if (upto <= s->start) return;
    size_t gone = 0;
    while (s->start < upto) {
        const uint64_t until = run_end(s, gone) < upto ? run_end(s, gone) : upto;
        s->off_start[s->runs[gone] & 1] += until - s->start;
        s->start = until;
        if (until == run_end(s, gone) && gone + 1 < s->runs_n) ++gone;
    }
    if (gone > 0) {
        memmove(s->runs, s->runs + gone, (s->runs_n - gone) * sizeof *s->runs);
        s->runs_n -= gone;
        s->runs_base += gone;
    }
    // The last block stays while it can take more.
    while (s->first_block < s->next_block && (s->first_block + 1) * BLOCK <= s->start) {
        const uint32_t slot = s->where[s->first_block++ % MAX_BLOCKS];
        if (slot & IN_FILE)
            s->free_file[s->free_file_n++] = slot & ~IN_FILE;
        else
            s->free_memory[s->free_memory_n++] = slot;
    }
}

void spool_drop_oldest(struct spool* s) {
    const uint64_t before = s->start;
    uint64_t upto = (s->first_block + 1) * BLOCK;
    // A full index is relieved by runs, a full store by a block.
    if (s->runs_n >= MAX_RUNS && (s->runs[MAX_RUNS / 8] >> 1) > s->start &&
        (s->runs[MAX_RUNS / 8] >> 1) < upto)
        upto = s->runs[MAX_RUNS / 8] >> 1;
    spool_release(s, upto);
    s->dropped += s->start - before;
}

void spool_first(const struct spool* s, struct cursor* at) {
    at->pos = s->start;
    at->off[0] = s->off_start[0];
    at->off[1] = s->off_start[1];
    at->run = s->runs_base;
}

bool spool_seek(const struct spool* s, uint64_t pos, struct cursor* at) {
    if (pos < s->start || pos > s->end) return false;
    spool_first(s, at);
    for (size_t i = 0; at->pos < pos; ++i) {
        const uint64_t until = run_end(s, i) < pos ? run_end(s, i) : pos;
        at->off[s->runs[i] & 1] += until - at->pos;
        at->pos = until;
        at->run = s->runs_base + i + (until == run_end(s, i) && i + 1 < s->runs_n ? 1 : 0);
    }
    return true;
}

int spool_send(struct spool* s, struct cursor* at, int sock, bool* file_passed) {
    static uint8_t payload[WIRE_PAYLOAD];
    struct segment segments[WIRE_SEGMENTS];
    // What is contiguous of one kind: the rest of a block in memory, or blocks in the file.
    uint64_t until = at->pos;
    const uint64_t limit_pos = at->pos + s->portion;
    uint32_t segment_n = 0;
    const uint8_t* inline_bytes = NULL;
    while (until < s->end && until < limit_pos && segment_n < WIRE_SEGMENTS) {
        const uint32_t slot = s->where[until / BLOCK % MAX_BLOCKS];
        uint64_t next = (until / BLOCK + 1) * BLOCK;
        if (next > s->end) next = s->end;
        if (next > limit_pos) next = limit_pos;
        if (!(slot & IN_FILE)) {
            if (segment_n > 0) break;
            inline_bytes = s->memory[slot] + until % BLOCK;
            until = next;
            break;
        }
        segments[segment_n].at = (uint64_t)(slot & ~IN_FILE) * BLOCK + until % BLOCK;
        segments[segment_n].length = (uint32_t)(next - until);
        segments[segment_n++].unused = 0;
        until = next;
    }
    struct cursor moved = *at;
    if (moved.run < s->runs_base) moved.run = s->runs_base; // it stood at the end of a released run
    uint32_t* runs = (uint32_t*)(void*)payload;
    uint64_t run_n = 0;
    while (moved.pos < until && run_n < WIRE_RUNS) {
        const size_t i = (size_t)(moved.run - s->runs_base);
        const uint64_t limit = run_end(s, i) < until ? run_end(s, i) : until;
        const uint64_t n = limit - moved.pos;
        const unsigned stream = s->runs[i] & 1;
        if (n > 0) runs[run_n++] = (uint32_t)(n << 1 | stream);
        moved.off[stream] += n;
        moved.pos = limit;
        // The last run may still grow: the cursor stays in it.
        if (limit == run_end(s, i) && i + 1 < s->runs_n)
            ++moved.run;
        else
            break;
    }
    const uint64_t total = moved.pos - at->pos;
    size_t n = run_n * sizeof *runs;
    if (inline_bytes) {
        memcpy(payload + n, inline_bytes, total);
        n += total;
    } else {
        // Not more than the runs cover.
        uint64_t sum = 0;
        uint32_t used = 0;
        while (used < segment_n && sum < total) {
            if (sum + segments[used].length > total)
                segments[used].length = (uint32_t)(total - sum);
            sum += segments[used++].length;
        }
        segment_n = used;
        memcpy(payload + n, segments, segment_n * sizeof *segments);
        n += segment_n * sizeof *segments;
    }
    const uint64_t v[] = {at->pos,   at->off[0], at->off[1], run_n,
                          segment_n, total,      s->start,   s->end};
    const bool pass = segment_n > 0 && !*file_passed;
    const int error = wire_send(sock, wire_data, v, 8, spool_half_full(s) ? 1 : 0, payload, n,
                                pass ? s->file : -1);
    if (error == EMSGSIZE && s->portion > 1024) {
        s->portion = s->portion > BLOCK ? BLOCK / 2 : s->portion / 2; // small socket buffers
        return spool_send(s, at, sock, file_passed);
    }
    if (error) return error;
    if (pass) *file_passed = true;
    *at = moved;
    return 0;
}
