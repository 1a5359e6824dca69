// The text of state.json: every sandbox record, versioned.
//
// Reading is strict about what it needs and forgiving about the rest: one record that makes no
// sense is set aside with a reason and blocks no other; a file that makes no sense as a whole, or
// comes from a newer version, is an error, and the caller keeps it (see state_store).
#pragma once

#include "core/cloud_clock.hpp"
#include "core/money.hpp"
#include "core/sandbox_record.hpp"

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::store {

inline constexpr int state_version = 1;

class unreadable_state : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct price_list {
    std::int64_t at = 0;                        // unix seconds of the cloud's clock; 0: never asked
    std::map<std::string, double> usd_per_hour; // by plan
};

struct saved_state {
    std::vector<core::sandbox_record> records;
    core::ledger ledger;
    price_list prices;
    core::clock_mark clock;
};

struct parsed_state {
    saved_state state;
    std::vector<std::string> rejected; // one reason for each record left out
};

std::string format_state(const saved_state& state);
parsed_state parse_state(std::string_view text); // throws unreadable_state

} // namespace sandboxd::store
