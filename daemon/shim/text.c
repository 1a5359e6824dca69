// Numbers, encodings, and the frames on stdout. The format is in frames.h.
#include "shim.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

void put_char(struct text* to, char c) {
    if (to->n < to->room) to->at[to->n++] = c;
}

void put(struct text* to, const char* s) {
    while (*s)
        put_char(to, *s++);
}

void put_u64(struct text* to, uint64_t value) {
    char digits[20];
    int n = 0;
    do
        digits[n++] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    while (n > 0)
        put_char(to, digits[--n]);
}

void put_i64(struct text* to, int64_t value) {
    if (value < 0) put_char(to, '-');
    put_u64(to, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

static const char hex_digits[] = "0123456789ABCDEF";

void put_hex(struct text* to, uint64_t value) {
    for (int shift = 60; shift >= 0; shift -= 4)
        put_char(to, (char)(hex_digits[value >> shift & 15] | 0x20));
}

static bool is_letter_or_digit(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void put_quoted(struct text* to, const char* s, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const unsigned char c = (unsigned char)s[i];
        if ((is_letter_or_digit(c) || (c != 0 && strchr("._~:/,+-", c))) && !(n == 1 && c == '-')) {
            put_char(to, (char)c);
        } else {
            put_char(to, '%');
            put_char(to, hex_digits[c >> 4]);
            put_char(to, hex_digits[c & 15]);
        }
    }
}

bool parse_u64(const char* s, uint64_t* value) {
    uint64_t sum = 0;
    if (!s || !*s) return false;
    for (; *s; ++s) {
        if (*s < '0' || *s > '9' || sum > (INT64_MAX - 9) / 10) return false;
        sum = sum * 10 + (uint64_t)(*s - '0');
    }
    *value = sum;
    return true;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool unquote(const char* from, char* to, size_t* length) {
    size_t n = 0;
    for (; *from; ++from) {
        if (*from != '%') {
            to[n++] = *from;
            continue;
        }
        const int high = hex_value(from[1]), low = high < 0 ? -1 : hex_value(from[2]);
        if (low < 0 || (high == 0 && low == 0)) return false;
        to[n++] = (char)(high << 4 | low);
        from += 2;
    }
    to[n] = '\0';
    *length = n;
    return true;
}

size_t base64_size(size_t n) {
    return (n + 2) / 3 * 4;
}

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const uint8_t* from, size_t n, char* to) {
    for (; n >= 3; n -= 3, from += 3, to += 4) {
        const uint32_t v = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
        to[0] = base64_digits[v >> 18];
        to[1] = base64_digits[v >> 12 & 63];
        to[2] = base64_digits[v >> 6 & 63];
        to[3] = base64_digits[v & 63];
    }
    if (n == 0) return;
    const uint32_t v = (uint32_t)from[0] << 16 | (n == 2 ? (uint32_t)from[1] << 8 : 0);
    to[0] = base64_digits[v >> 18];
    to[1] = base64_digits[v >> 12 & 63];
    to[2] = n == 2 ? base64_digits[v >> 6 & 63] : '=';
    to[3] = '=';
}

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_decode(const char* from, uint8_t* to, size_t* length) {
    size_t size = strlen(from), n = 0;
    if (size % 4 != 0) return false;
    size_t padding = 0;
    while (padding < 2 && size > padding && from[size - 1 - padding] == '=')
        ++padding;
    for (size_t i = 0; i < size; i += 4) {
        uint32_t v = 0;
        const size_t filled = i + 4 == size ? 4 - padding : 4;
        for (size_t k = 0; k < 4; ++k) {
            const int digit = k < filled ? base64_value(from[i + k]) : 0;
            if (digit < 0) return false;
            v = v << 6 | (uint32_t)digit;
        }
        to[n++] = (uint8_t)(v >> 16);
        if (filled > 2) to[n++] = (uint8_t)(v >> 8);
        if (filled > 3) to[n++] = (uint8_t)v;
    }
    *length = n;
    return true;
}

// Without an early exit, so that the compiler can make vectors of it.
__attribute__((optimize("O3"))) bool is_plain(const uint8_t* data, size_t n) {
    uint8_t bad = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint8_t c = data[i];
        bad |= (uint8_t)(((c < 0x20) & (c != '\n') & (c != '\t')) | (c > 0x7e));
    }
    return bad == 0;
}

bool is_id(const char* s) {
    const size_t n = strlen(s);
    if (n == 0 || n > SHIM_ID_MAX || !is_letter_or_digit((unsigned char)s[0])) return false;
    for (size_t i = 1; i < n; ++i)
        if (!is_letter_or_digit((unsigned char)s[i]) && !strchr("._-", s[i])) return false;
    return true;
}

bool is_digest(const char* s) {
    const size_t n = strlen(s);
    if (n > SHIM_DIGEST_MAX) return false;
    for (size_t i = 0; i < n; ++i)
        if (!is_letter_or_digit((unsigned char)s[i])) return false;
    return true;
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// -- frames

static char buffer[BLOCK / 3 * 4 + 3 * SHIM_FRAME_LINE_MAX];
static struct text line = {buffer, 0, sizeof buffer};
static size_t line_start;
static uint64_t written;

#define TICKS_PER_SECOND 4
#define IDLE TICKS_PER_SECOND          // without a byte taken
#define LATEST (30 * TICKS_PER_SECOND) // in all
static volatile sig_atomic_t late;     // ticks since the limit

static void tick(int signal) {
    (void)signal;
    if (late <= LATEST) ++late;
}

// A clock that goes on ticking, since the first tick may come just before a write that waits.
void frame_limit(uint64_t seconds) {
    struct sigaction action = {.sa_handler = tick};
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &alarm, NULL);
    const struct itimerval clock = {.it_value = {.tv_sec = (time_t)seconds},
                                    .it_interval = {.tv_usec = 1000000 / TICKS_PER_SECOND}};
    setitimer(ITIMER_REAL, &clock, NULL);
}

bool frame_limit_reached(void) {
    return late > 0;
}

// What was collected, then `data`.
static void flush_with(const void* data, size_t size) {
    struct iovec parts[2] = {{buffer, line.n}, {(void*)data, size}};
    int waited = 0; // ticks
    for (struct iovec* part = parts; part < parts + 2;) {
        if (waited > IDLE || late > LATEST) _exit(0);
        if (part->iov_len == 0) {
            ++part;
            continue;
        }
        const ssize_t n = writev(1, part, (int)(parts + 2 - part));
        if (n < 0 && errno == EINTR) {
            waited += late > 0;
            continue;
        }
        if (n <= 0) _exit(1);
        waited = 0;
        size_t left = (size_t)n;
        for (struct iovec* each = part; each < parts + 2; ++each) {
            const size_t taken = left < each->iov_len ? left : each->iov_len;
            each->iov_base = (char*)each->iov_base + taken;
            each->iov_len -= taken;
            left -= taken;
        }
    }
    written += line.n + size;
    line.n = 0;
}

void frame_flush(void) {
    flush_with(NULL, 0);
}

uint64_t frame_bytes(void) {
    return written + line.n;
}

bool frame_pending(void) {
    return line.n > 0;
}

void frame(const char* name) {
    if (sizeof buffer - line.n < SHIM_FRAME_LINE_MAX) frame_flush();
    line_start = line.n;
    put(&line, name);
}

void frame_word(const char* word) {
    put(&line, word);
}

static void key(const char* name) {
    put_char(&line, ' ');
    put(&line, name);
    put_char(&line, '=');
}

void field(const char* name, const char* value) {
    key(name);
    put(&line, *value ? value : "-");
}

void field_text(const char* name, const char* s) {
    key(name);
    if (*s == '\0') {
        put_char(&line, '-');
        return;
    }
    // A text that would make the line too long is cut: it is for people then.
    const size_t room = SHIM_FRAME_LINE_MAX - 512 - (line.n - line_start), n = strlen(s);
    put_quoted(&line, s, n < room / 3 ? n : room / 3);
}

void field_u64(const char* name, uint64_t value) {
    key(name);
    put_u64(&line, value);
}

void field_opt(const char* name, int64_t value) {
    key(name);
    if (value < 0)
        put_char(&line, '-');
    else
        put_u64(&line, (uint64_t)value);
}

void frame_end(void) {
    put_char(&line, '\n');
}

static void data_head(int stream, uint64_t pos, uint64_t off, const char* kind, size_t n) {
    put(&line, stream == 0 ? "o " : "e ");
    put_u64(&line, pos);
    put_char(&line, ' ');
    put_u64(&line, off);
    put(&line, kind);
    put_u64(&line, n);
}

static void put_base64(const uint8_t* data, size_t n) {
    base64_encode(data, n, buffer + line.n);
    line.n += base64_size(n);
}

#define PACK_MIN 4096
#define PACK_ROOM(n) ((n) / 16 * 9) // in base64 three quarters of what it was
#define PACK_REST 15                // frames that are not tried after one that did not shrink

// The size of what is in `packed` now; 0 = it does not pay.
static uint8_t packed[PACK_ROOM(SHIM_FRAME_DATA_MAX)];
static size_t pack(const uint8_t* data, size_t n) {
    static unsigned rest;
    if (n < PACK_MIN || rest > 0) {
        rest -= n >= PACK_MIN;
        return 0;
    }
    const size_t size = lz4_pack(data, n, packed, PACK_ROOM(n));
    if (size == 0) rest = PACK_REST;
    return size;
}

void frame_data(int stream, uint64_t pos, uint64_t off, const uint8_t* data, size_t n) {
    const size_t shrunk = pack(data, n);
    const bool plain = shrunk == 0 && is_plain(data, n);
    if (sizeof buffer - line.n < base64_size(n) + 128) frame_flush();
    data_head(stream, pos, off, shrunk ? " z " : plain ? " r " : " b ", n);
    if (shrunk) {
        put_char(&line, ' ');
        put_u64(&line, base64_size(shrunk));
    }
    put_char(&line, '\n');
    if (shrunk) {
        put_base64(packed, shrunk);
    } else if (!plain) {
        put_base64(data, n);
    } else if (n >= BLOCK / 2) {
        flush_with(data, n); // too much to be copied once more
    } else {
        memcpy(buffer + line.n, data, n);
        line.n += n;
    }
    put_char(&line, '\n');
}

void finish(int status) {
    frame_flush();
    _exit(status);
}

void fail(const char* name, int error, const char* at, bool nothing_started) {
    frame("error");
    field("name", name);
    field_opt("errno", error ? error : -1);
    field_text("at", at);
    field("started", nothing_started ? "no" : "unknown");
    frame_end();
    finish(2);
}
