// The stdin of a command: chunks at offsets, one in flight, written as the command takes them.
//
// Lives in the runner. A chunk that was accepted is owned here, by its file or its memory, until it
// is written or the command has closed its end; so a connection that breaks in between loses
// nothing, and the same chunk sent again is not fed twice.
#pragma once

#include "shim.h"

struct feed {
    bool open_ended; // chunks may come with `shim stdin`
    bool eof;        // nothing comes after `accepted`
    bool closed;     // by the command
    int to;          // our end of the pipe, non-blocking; -1 = closed
    int from;        // file of the chunk in flight; -1 = `data`
    const uint8_t* data;
    uint64_t data_at;                    // where in from or data the next byte to fetch is
    uint64_t accepted, fetched, written; // positions of stdin
    size_t have, used;                   // in `buffer`
    uint8_t buffer[BLOCK];
};

// The whole stdin: n bytes of `file` or of `data`; then EOF.
void feed_whole(struct feed* feed, int file, const uint8_t* data, uint64_t n);
// Takes over `file` (-1 = no bytes), of which n bytes from `start` are stdin's from `offset` on.
enum wire_stdin_state feed_offer(struct feed* feed, uint64_t offset, uint64_t n, bool eof, int file,
                                 uint64_t start);
void feed_step(struct feed* feed); // writes what can be written without waiting
enum wire_stdin_state feed_state(const struct feed* feed);
void feed_broken(struct feed* feed); // nobody reads any more
