#include "base/digest.hpp"

#include <openssl/evp.h>

#include <new>

namespace sandboxd {

struct digest::state {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    ~state() { EVP_MD_CTX_free(context); }
    void begin() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
};

digest::digest() : state_(std::make_unique<state>()) {
    if (state_->context == nullptr) throw std::bad_alloc();
    state_->begin();
}
digest::~digest() = default;

void digest::add(const void* bytes, std::size_t size) {
    EVP_DigestUpdate(state_->context, bytes, size);
}

std::string digest::take() {
    static constexpr char digits[] = "0123456789abcdef";
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_DigestFinal_ex(state_->context, bytes, &size);
    state_->begin();
    std::string out;
    for (unsigned i = 0; i < size; ++i)
        out += {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
    return out;
}

} // namespace sandboxd
