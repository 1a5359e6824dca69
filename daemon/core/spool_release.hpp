// How much of a command's output its sandbox is told to forget. Pure.
//
// Rarely, since each word is a call; and not all that is safe, as whoever attaches later wants what
// was printed before. Everything where the command waits for room, or the room turns out to be much
// smaller than was planned.
#pragma once

#include <cstdint>

namespace sandboxd::core {

// `safe`: the position before which all clients have it. `released`: what the sandbox was told
// before. `spool`: bytes, most that it keeps. Answers what to tell now; `released`: nothing new.
constexpr std::uint64_t release_upto(std::uint64_t safe, std::uint64_t released,
                                     std::uint64_t spool, bool needed) noexcept {
    if (needed) {
        return safe > released ? safe : released;
    }
    const std::uint64_t much = spool / 4 * 3;
    return safe >= released && safe - released >= much ? safe - spool / 2 : released;
}

} // namespace sandboxd::core
