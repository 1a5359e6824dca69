// The stdin of a command; see feed.h.
#include "feed.h"

#include <unistd.h>

static void let_go_of_source(struct feed* feed) {
    if (feed->from >= 0) close(feed->from);
    feed->from = -1;
    feed->data = NULL;
}

void feed_broken(struct feed* feed) {
    if (feed->to >= 0) close(feed->to);
    feed->to = -1;
    feed->closed = true;
    feed->fetched = feed->written = feed->accepted;
    feed->have = feed->used = 0;
    let_go_of_source(feed);
}

static bool fetch(struct feed* feed) {
    uint64_t n = feed->accepted - feed->fetched;
    if (n > sizeof feed->buffer) n = sizeof feed->buffer;
    if (feed->from >= 0) {
        ssize_t got;
        do
            got = pread(feed->from, feed->buffer, n, (off_t)feed->data_at);
        while (got < 0 && errno == EINTR);
        if (got <= 0) return false; // the file became shorter: what is missing cannot be made up
        n = (uint64_t)got;
    } else {
        memcpy(feed->buffer, feed->data + feed->data_at, n);
    }
    feed->data_at += n;
    feed->fetched += n;
    feed->have = n;
    feed->used = 0;
    return true;
}

void feed_step(struct feed* feed) {
    if (feed->to < 0) return;
    while (feed->written < feed->accepted) {
        if (feed->used == feed->have && !fetch(feed)) {
            feed_broken(feed);
            return;
        }
        const ssize_t n = write(feed->to, feed->buffer + feed->used, feed->have - feed->used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) {
            feed_broken(feed);
            return;
        }
        feed->used += (size_t)n;
        feed->written += (uint64_t)n;
    }
    let_go_of_source(feed);
    if (!feed->eof) return;
    close(feed->to);
    feed->to = -1;
}

void feed_whole(struct feed* feed, int file, const uint8_t* data, uint64_t n) {
    feed->from = file;
    feed->data = data;
    feed->accepted = n;
    feed->eof = true;
    feed_step(feed);
}

enum wire_stdin_state feed_state(const struct feed* feed) {
    if (feed->closed) return stdin_closed;
    if (feed->eof && feed->written == feed->accepted) return stdin_eof;
    return feed->open_ended ? stdin_open : stdin_none;
}

enum wire_stdin_state feed_offer(struct feed* feed, uint64_t offset, uint64_t n, bool eof, int file,
                                 uint64_t start) {
    const uint64_t end = offset + n;
    const bool news = end > feed->accepted || (eof && end == feed->accepted && !feed->eof);
    enum wire_stdin_state state = feed_state(feed);
    if (news && state == stdin_open) {
        if (offset > feed->accepted) {
            state = stdin_early;
        } else if (end > feed->accepted && feed->eof) {
            state = stdin_eof;
        } else if (end > feed->accepted && feed->written < feed->accepted) {
            state = stdin_busy;
        } else {
            if (end > feed->accepted) {
                feed->from = file;
                file = -1;
                feed->data_at = start + (feed->accepted - offset);
                feed->accepted = end;
            }
            feed->eof = feed->eof || eof;
            feed_step(feed);
            state = feed_state(feed);
        }
    }
    if (file >= 0) close(file);
    return state;
}
