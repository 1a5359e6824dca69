#include "base/lz4.hpp"

#include <lz4.h>

#include <limits>

namespace sandboxd {

std::optional<std::string> lz4_unpacked(std::string_view block, std::size_t size) {
    constexpr std::size_t most = std::numeric_limits<int>::max();
    if (block.size() > most || size > most) {
        return std::nullopt;
    }
    std::string bytes(size, '\0');
    const int got = LZ4_decompress_safe(block.data(), bytes.data(), static_cast<int>(block.size()),
                                        static_cast<int>(size));
    if (got < 0 || static_cast<std::size_t>(got) != size) {
        return std::nullopt;
    }
    return bytes;
}

} // namespace sandboxd
