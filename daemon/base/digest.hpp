// SHA-256 of what passes by.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sandboxd {

class digest {
public:
    digest();
    ~digest();
    digest(const digest&) = delete;
    digest& operator=(const digest&) = delete;

    void add(const void* bytes, std::size_t size);
    void add(std::string_view bytes) { add(bytes.data(), bytes.size()); }
    // Of all that was added, as hexadecimal digits; begins anew.
    std::string take();

private:
    struct state;
    std::unique_ptr<state> state_;
};

} // namespace sandboxd
