// Output packed as a block of LZ4: for text it is several times fewer bytes on a channel that is
// slow, and dear at both ends. The daemon unpacks with the library; this is the writing half of the
// format (https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md), which the library's builds
// for another libc cannot bring along.
//
// Greedy, with one hash table and steps that grow where nothing repeats. Keeps nothing between
// calls. Both platforms of the shim are little-endian.
#include "shim.h"

#define MIN_MATCH 4u
#define LAST_LITERALS 5u // a block ends with so many at least
#define NO_MATCH_IN 12u  // and begins no match in its last bytes
#define LONGEST 65536u   // so that every distance fits two bytes
#define HASH_BITS 12
#define PATIENCE_BITS 6 // misses before the steps grow, as a power of two

static uint32_t read32(const uint8_t* at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t read64(const uint8_t* at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

// Where `at` stops being the same as the earlier `before`.
static const uint8_t* same_until(const uint8_t* at, const uint8_t* before, const uint8_t* end) {
    for (; at + 8 <= end; at += 8, before += 8) {
        const uint64_t other = read64(at) ^ read64(before);
        if (other) return at + (__builtin_ctzll(other) >> 3);
    }
    while (at < end && *at == *before)
        ++at, ++before;
    return at;
}

// What exceeds the 15 that fit into the token.
static uint8_t* put_rest(uint8_t* to, size_t n) {
    if (n < 15) return to;
    for (n -= 15; n >= 255; n -= 255)
        *to++ = 255;
    *to++ = (uint8_t)n;
    return to;
}

static size_t nibble(size_t n) {
    return n < 15 ? n : 15;
}

// Token, literals, and the lengths that do not fit the token.
static size_t sequence_size(size_t literals, size_t match) {
    return 1 + literals + literals / 255 + 1 + 2 + match / 255 + 1;
}

static uint8_t* put_literals(uint8_t* to, const uint8_t* from, size_t n, size_t match) {
    *to++ = (uint8_t)(nibble(n) << 4 | nibble(match));
    to = put_rest(to, n);
    memcpy(to, from, n);
    return to + n;
}

size_t lz4_pack(const uint8_t* from, size_t n, uint8_t* to, size_t room) {
    static uint16_t seen[1u << HASH_BITS]; // where four bytes of this hash were last
    if (n <= NO_MATCH_IN || n > LONGEST) return 0;
    memset(seen, 0, sizeof seen);
    const uint8_t *const last_start = from + n - NO_MATCH_IN, *const match_limit =
                                                                  from + n - LAST_LITERALS;
    const uint8_t *at = from + 1, *done = from;
    uint8_t* out = to;
    for (unsigned misses = 0; at <= last_start;) {
        const uint32_t word = read32(at);
        uint16_t* const slot = &seen[word * 2654435761u >> (32 - HASH_BITS)];
        const uint8_t* before = from + *slot;
        *slot = (uint16_t)(at - from);
        if (read32(before) != word) {
            at += 1 + (misses++ >> PATIENCE_BITS);
            continue;
        }
        misses = 0;
        while (at > done && before > from && at[-1] == before[-1])
            --at, --before;
        const uint8_t* const end = same_until(at + MIN_MATCH, before + MIN_MATCH, match_limit);
        const size_t literals = (size_t)(at - done), match = (size_t)(end - at) - MIN_MATCH;
        const unsigned distance = (unsigned)(at - before);
        if (sequence_size(literals, match) > room - (size_t)(out - to)) return 0;
        out = put_literals(out, done, literals, match);
        *out++ = (uint8_t)distance;
        *out++ = (uint8_t)(distance >> 8);
        out = put_rest(out, match);
        at = done = end;
    }
    const size_t rest = (size_t)(from + n - done);
    if (sequence_size(rest, 0) > room - (size_t)(out - to)) return 0;
    return (size_t)(put_literals(out, done, rest, 0) - to);
}
