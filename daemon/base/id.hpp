// Random identifiers.
#pragma once

#include <cstddef>
#include <string>

namespace sandboxd {

// `bytes` random bytes (from the kernel, unpredictable) as lower-case hexadecimal digits, two a
// byte.
std::string random_hex(std::size_t bytes);

} // namespace sandboxd
