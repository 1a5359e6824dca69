// The program: `serve` is the daemon, every other verb its client.
#include "cli/app.hpp"
#include "serve.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

namespace {

// A descriptor that the parent closed would be given to the next socket, and output written into
// it.
bool open_standard_descriptors() {
    for (int fd = 0; fd <= 2; ++fd) {
        if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) return false;
    }
    return true;
}

} // namespace

int main(int argc, char** argv) {
    if (!open_standard_descriptors()) return 1;
    try {
        return sandboxd::cli::run({argv + (argc > 0 ? 1 : 0), argv + argc},
                                  sandboxd::sys::environment::current(), sandboxd::serve);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "deepinfra-sandboxd: %s\n", error.what());
        return 1;
    }
}
