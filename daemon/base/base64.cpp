#include "base/base64.hpp"

#include <openssl/evp.h>

#include <algorithm>

namespace sandboxd {

std::string base64_encode(std::string_view bytes) {
    std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0'); // EVP_EncodeBlock adds a NUL
    const int written = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                        reinterpret_cast<const unsigned char*>(bytes.data()),
                                        static_cast<int>(bytes.size()));
    out.resize(static_cast<std::size_t>(written));
    return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
    if (text.empty()) {
        return std::string{};
    }
    const auto padding_at = text.find('=');
    const std::size_t padding = padding_at == std::string_view::npos ? 0 : text.size() - padding_at;
    // EVP_DecodeBlock trims white space, takes '-' for an end and padding anywhere: all refused
    // here.
    if (text.size() % 4 != 0 || padding > 2 ||
        text.find_first_of(" \t\r\n\v\f-") != std::string_view::npos ||
        std::count(text.begin(), text.end(), '=') != static_cast<std::ptrdiff_t>(padding)) {
        return std::nullopt;
    }
    std::string out(text.size() / 4 * 3, '\0');
    const int written = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                        reinterpret_cast<const unsigned char*>(text.data()),
                                        static_cast<int>(text.size()));
    if (written < 0) {
        return std::nullopt;
    }
    out.resize(static_cast<std::size_t>(written) - padding);
    return out;
}

} // namespace sandboxd
