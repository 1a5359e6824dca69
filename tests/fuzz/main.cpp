// The command line: `fuzz [TARGET] [FIRST] [RUNS]`, default all targets, 0 and 20000.
#include "fuzz.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

struct target {
    const char* name;
    void (*run)(fuzz::chance&);
};
constexpr target targets[] = {
    {"shim", fuzz::shim}, {"ndjson", fuzz::ndjson}, {"rpc_lines", fuzz::rpc_lines}};

const char* current = "";
unsigned long long number = 0;
std::atomic<std::size_t> in_use{0};

void* allocate(std::size_t size) {
    void* const at = std::malloc(size);
    if (at == nullptr) {
        throw std::bad_alloc();
    }
    in_use += malloc_usable_size(at);
    return at;
}

void release(void* at) noexcept {
    if (at != nullptr) {
        in_use -= malloc_usable_size(at);
    }
    std::free(at);
}

} // namespace

void* operator new(std::size_t size) {
    return allocate(size);
}
void* operator new[](std::size_t size) {
    return allocate(size);
}
void operator delete(void* at) noexcept {
    release(at);
}
void operator delete[](void* at) noexcept {
    release(at);
}
void operator delete(void* at, std::size_t) noexcept {
    release(at);
}
void operator delete[](void* at, std::size_t) noexcept {
    release(at);
}

namespace fuzz {

void require(bool holds, const char* what) {
    if (!holds) {
        std::fprintf(stderr, "%s\nagain with: fuzz %s %llu 1\n", what, current, number);
        std::abort();
    }
}

std::size_t memory_in_use() noexcept {
    return in_use;
}

} // namespace fuzz

int main(int argc, char** argv) {
    const unsigned long long first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
    const unsigned long long runs = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 20'000;
    bool found = false;
    for (const target& each : targets) {
        if (argc > 1 && std::strcmp(argv[1], each.name) != 0) {
            continue;
        }
        found = true;
        current = each.name;
        for (number = first; number < first + runs; ++number) {
            fuzz::chance by(number);
            each.run(by);
        }
        std::printf("%s: %llu runs\n", each.name, runs);
    }
    if (!found) {
        std::fprintf(stderr, "usage: fuzz [shim|ndjson|rpc_lines [FIRST [RUNS]]]\n");
    }
    return found ? 0 : 2;
}
