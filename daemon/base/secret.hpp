// A string that must not be seen: the API key.
//
// It has no stream operator, no formatter and no implicit conversion, so it cannot slip into a log
// line or an error text; `reveal()` is the one way out and easy to search for. The memory is
// overwritten when it goes.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace sandboxd {

class secret {
public:
    secret() = default;
    explicit secret(std::string value) noexcept : value_(std::move(value)) {}
    secret(const secret&) = default;
    secret(secret&&) = default;
    secret& operator=(const secret& other) {
        if (this != &other) {
            wipe();
            value_ = other.value_;
        }
        return *this;
    }
    secret& operator=(secret&& other) noexcept {
        if (this != &other) {
            wipe();
            value_ = std::move(other.value_);
        }
        return *this;
    }
    ~secret() { wipe(); }

    bool empty() const noexcept { return value_.empty(); }
    // For the Authorization header and the 0600 key file only.
    std::string_view reveal() const noexcept { return value_; }

    friend bool operator==(const secret&, const secret&) = default;

private:
    void wipe() noexcept {
        for (volatile char& c : value_) {
            c = 0;
        }
    }

    std::string value_;
};

} // namespace sandboxd
