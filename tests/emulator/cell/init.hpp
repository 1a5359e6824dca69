// Process 1 of a cell: sets the namespaces up, starts commands on order, reaps everything, reports.
#pragma once

#include "cell/protocol.hpp"

namespace emulator::cell {

// Never returns. `control` is the socket to the emulator; its end means that the emulator is gone,
// and then so is the cell.
[[noreturn]] void run_init(int control, const launch_order& how, bool privileged,
                           unsigned outer_uid, unsigned outer_gid);

} // namespace emulator::cell
