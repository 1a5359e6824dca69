#include "base/fingerprint.hpp"

#include <openssl/evp.h>

#include <array>

namespace sandboxd {
namespace {

struct digest_context {
    EVP_MD_CTX* ctx = EVP_MD_CTX_new();
    digest_context() = default;
    digest_context(const digest_context&) = delete;
    digest_context& operator=(const digest_context&) = delete;
    ~digest_context() { EVP_MD_CTX_free(ctx); }
    void update(std::string_view bytes) { EVP_DigestUpdate(ctx, bytes.data(), bytes.size()); }
};

std::string finish(digest_context& digest) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
    unsigned size = 0;
    EVP_DigestFinal_ex(digest.ctx, hash.data(), &size);
    static constexpr char digits[] = "0123456789abcdef";
    std::string hex;
    hex.reserve(size * 2);
    for (unsigned i = 0; i < size; ++i) {
        hex += digits[hash[i] >> 4];
        hex += digits[hash[i] & 15];
    }
    return hex;
}

} // namespace

std::string sha256_hex(std::string_view bytes) {
    digest_context digest;
    EVP_DigestInit_ex(digest.ctx, EVP_sha256(), nullptr);
    digest.update(bytes);
    return finish(digest);
}

std::string key_fingerprint(const secret& api_key) {
    digest_context digest;
    EVP_DigestInit_ex(digest.ctx, EVP_sha256(), nullptr);
    digest.update("deepinfra-sandboxd key v1\n");
    digest.update(api_key.reveal());
    return finish(digest).substr(0, 16);
}

} // namespace sandboxd
