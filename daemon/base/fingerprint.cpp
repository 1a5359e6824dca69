#include "base/fingerprint.hpp"

#include "base/digest.hpp"

namespace sandboxd {

std::string sha256_hex(std::string_view bytes) {
    digest sum;
    sum.add(bytes);
    return sum.take();
}

std::string key_fingerprint(const secret& api_key) {
    digest sum;
    sum.add("deepinfra-sandboxd key v1\n");
    sum.add(api_key.reveal());
    return sum.take().substr(0, 16);
}

} // namespace sandboxd
