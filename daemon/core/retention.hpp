// Whether a stopped sandbox is old enough to be deleted. Final, so it takes two listings in
// agreement, by a clock that both times was settled.
//
// Pure; one per sandbox key. Who calls it has just applied a listing to the record.
#pragma once

#include "core/backoff.hpp"
#include "core/sandbox_record.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace sandboxd::core {

class retention {
public:
    static constexpr milliseconds gap{10'000}; // between the two listings, at least

    // `cloud`: unix seconds of the cloud's clock, nothing while that is not settled; `now`: any
    // clock that only goes forward. True: delete it.
    bool on_listing(const sandbox_record& record, std::optional<std::int64_t> cloud,
                    milliseconds now, milliseconds limit);
    // One listing has said so: another should follow.
    bool wants_another() const noexcept { return since_.has_value(); }

private:
    std::optional<milliseconds> since_; // a listing said so, and none since has said otherwise
    std::string sandbox_id_;            // of which
};

} // namespace sandboxd::core
