// Tells whoever wants to know how a transfer gets on, and never that it went back: a part that has
// to travel again is told once it has come further than before.
//
// Owned by one transfer, on the daemon's one thread.
#pragma once

#include "sync/service.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace sandboxd::sync {

class teller {
public:
    explicit teller(std::function<void(const transfer_progress&)> to) : to_(std::move(to)) {}

    // `phase`: of static storage. Another phase or another total is another stretch of the way.
    void tell(std::string_view phase, std::uint64_t done, std::optional<std::uint64_t> total) {
        if (!to_) return;
        if (phase != last_.phase || total != last_.total) last_ = {phase, 0, total};
        last_.done = std::max(last_.done, done);
        to_(last_);
    }

private:
    std::function<void(const transfer_progress&)> to_;
    transfer_progress last_;
};

} // namespace sandboxd::sync
