#include "base/id.hpp"

#include <openssl/rand.h>

#include <stdexcept>
#include <vector>

namespace sandboxd {

std::string random_hex(std::size_t bytes) {
    std::vector<unsigned char> raw(bytes);
    if (RAND_bytes(raw.data(), static_cast<int>(raw.size())) != 1) {
        throw std::runtime_error("the system's random generator failed");
    }
    static constexpr char digits[] = "0123456789abcdef";
    std::string hex;
    for (const unsigned char byte : raw) {
        hex += digits[byte >> 4];
        hex += digits[byte & 15];
    }
    return hex;
}

} // namespace sandboxd
