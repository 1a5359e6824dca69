// What a process that has nothing to do can give back without losing anything.
#pragma once

namespace sandboxd::sys {

// Before the first thread is made: all of them share one heap. Of several, glibc gives back the
// free end of the first only, and a thread that once needed much keeps it for as long as it lives.
void share_one_heap() noexcept;

// Lets go of free heap, and of the code and constants of the program and its libraries: those are
// the page cache's, and come back one by one as they are used again (about a third of a
// millisecond for the first call). Most of what was resident was only for the start.
void give_back_memory() noexcept;

} // namespace sandboxd::sys
