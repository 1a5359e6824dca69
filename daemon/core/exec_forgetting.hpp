// Which commands of before are forgotten first, where there are more than are remembered. Pure.
//
// One whose client has got everything goes before one that somebody may still ask for; of each
// kind the one that ended first. For what nobody has come back for in a day its sandbox keeps
// nothing either, so it counts as had.
#pragma once

#include "core/exec_record.hpp"

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace sandboxd::core {

// The ids of `count` of them, or of all. None of `over` may still run. `now`: unix milliseconds.
std::set<std::string> forgotten_first(std::vector<const exec_record*> over, std::size_t count,
                                      std::int64_t now);

} // namespace sandboxd::core
