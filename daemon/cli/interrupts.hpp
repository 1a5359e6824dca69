// What the signals that end a program mean to one that shows a command. Pure.
#pragma once

#include <chrono>
#include <optional>

namespace sandboxd::cli {

class interrupts {
public:
    using clock = std::chrono::steady_clock;

    // timeout(1) signals its child and then its group, a supervisor the group and then the child:
    // who is asked to end once is told so twice, and must not take that for impatience. Nobody
    // reads what an interrupt does and interrupts again within that time.
    static constexpr std::chrono::milliseconds one_request{300};

    enum class meaning {
        end,     // whatever is going on
        echo,    // nothing beyond what was meant before
        at_once, // whether that has ended or not
    };

    // Of what came by `now`, however many there were.
    meaning came(clock::time_point now) noexcept {
        if (!first_) {
            first_ = now;
            return meaning::end;
        }
        return now - *first_ < one_request ? meaning::echo : meaning::at_once;
    }

private:
    std::optional<clock::time_point> first_;
};

} // namespace sandboxd::cli
