// How much one connection to a command may bring before its follower leaves by itself.
//
// The platform ends a command whose output is too large, and chooses itself what to kill (its limit
// is not documented). So a follower leaves well before: at a default, and once the limit has been
// met, at half of what came before it.
#pragma once

#include <cstdint>
#include <string_view>

namespace sandboxd::core {

class output_allowance {
public:
    std::uint64_t most() const noexcept { return most_; } // bytes

    // The platform has ended a connection, for the reason it gives, when so many bytes had come.
    void on_ended(std::string_view why, std::uint64_t received);

private:
    // A connection more for so much costs nothing that could be measured.
    std::uint64_t most_ = 32U << 20;
};

} // namespace sandboxd::core
