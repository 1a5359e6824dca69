// When the account may be asked again after it asked for patience: one back-off for all requests.
//
// A 429 for too many requests pauses everything, a 503 what asks for a machine (a create, a start);
// each in a row pauses for longer, and Retry-After is honoured. A key that was refused twice in a
// row is not tried again and again: for a while every request is answered here with the platform's
// own refusal. Pure: `now` is any clock that only goes forward. Owned by the account.
#pragma once

#include "cloud/failure.hpp"
#include "core/backoff.hpp"

#include <optional>

namespace sandboxd::core {

class pacing {
public:
    enum class purpose { anything, a_machine };

    void on_success(purpose what) noexcept;
    // `jitter`: 0 to 1, at random, so that several daemons of one account do not ask in step.
    void on_failure(milliseconds now, const cloud::failure& failure, double jitter);
    void on_new_key() noexcept { *this = pacing(); }

    // What a request is answered with instead of being sent, its retry_after telling how long from
    // now; nothing: it may be sent.
    std::optional<cloud::failure> held_back(milliseconds now, purpose what) const;

private:
    struct pause {
        backoff delays;
        std::optional<cloud::failure> why;
        milliseconds until{0};

        void begin(milliseconds now, const cloud::failure& failure, double jitter);
        void end() noexcept;
        std::optional<cloud::failure> answer(milliseconds now) const;
    };

    pause everything_{{milliseconds(500), milliseconds(30'000)}, std::nullopt, milliseconds(0)};
    pause machines_{{milliseconds(500), milliseconds(30'000)}, std::nullopt, milliseconds(0)};
    pause key_{{milliseconds(2'000), milliseconds(600'000)}, std::nullopt, milliseconds(0)};
    bool key_doubted_ = false; // the last answer refused it
};

} // namespace sandboxd::core
