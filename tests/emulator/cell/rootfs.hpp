// The file system of a cell.
//
// Must run in a fresh mount, PID, UTS, IPC and network namespace (and user namespace unless root).
// Puts together, in memory, a root of the host's programs (/usr, /etc, /opt: a writable layer in
// memory over the host's own when overlayfs allows it, else read-only), its own /tmp, /root, /var,
// /run, /home, /dev, /proc, and /workspace bound to a host directory, then makes it the root and
// lets go of the host's. Nothing else of the host can be reached afterwards. Everything but
// /workspace is gone with the namespace.
#pragma once

#include "cell/protocol.hpp"

namespace emulator::cell {

// Throws std::system_error naming the step that failed.
void enter_root(const launch_order& how, bool privileged);

// Lets the process and all its descendants keep only the capabilities an ordinary container's root
// has: none that reaches outside (no mounting, no modules, no devices, no clock).
void drop_capabilities();

// The loopback interface of a new network namespace starts down.
void bring_loopback_up();

} // namespace emulator::cell
