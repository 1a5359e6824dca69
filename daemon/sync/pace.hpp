// How large the parts of an archive are made, and whether they are compressed: decided by how fast
// the line is.
//
// Pure.
#pragma once

#include <cstdint>

namespace sandboxd::sync {

// The speed of transfers to or from the platform, from the parts that went before.
class pace {
public:
    // What one part took; small ones tell more about latency than about speed.
    void took(std::uint64_t bytes, double seconds);
    bool known() const noexcept { return rate_ > 0; }
    double rate() const noexcept; // bytes a second; a guess while nothing is known

    // Bytes of the next part: a few seconds' worth, as that much is lost when the connection is.
    std::uint64_t part_size() const noexcept;

private:
    double rate_ = 0;
};

// `ratio`: compressed size to plain size of a sample. `compressor`: its speed in bytes a second of
// plain data. Compressing and sending go on side by side, so the slower of the two counts.
bool compression_pays(double ratio, double rate, double compressor) noexcept;

} // namespace sandboxd::sync
