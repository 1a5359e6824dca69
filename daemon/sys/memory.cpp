#include "sys/memory.hpp"

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace sandboxd::sys {
namespace {

// Only what was mapped without the right to write: a page that was changed, such as one with
// relocations, would come back as it is in the file.
int let_go(dl_phdr_info* object, std::size_t, void*) {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    for (int i = 0; i < object->dlpi_phnum; ++i) {
        const ElfW(Phdr)& segment = object->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
        const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
        const std::uintptr_t first = begin / page * page;
        ::madvise(reinterpret_cast<void*>(first), begin + segment.p_memsz - first, MADV_DONTNEED);
    }
    return 0;
}

} // namespace

void share_one_heap() noexcept {
    ::mallopt(M_ARENA_MAX, 1);
}

void give_back_memory() noexcept {
    ::malloc_trim(0);
    ::dl_iterate_phdr(let_go, nullptr);
}

} // namespace sandboxd::sys
