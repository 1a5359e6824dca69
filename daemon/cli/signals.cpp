#include "cli/signals.hpp"

#include "sys/system_error.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace sandboxd::cli {
namespace {

volatile std::sig_atomic_t handler_fd = -1;

extern "C" void note_signal(int) {
    const int saved = errno;
    const std::uint64_t one = 1;
    (void)!::write(handler_fd, &one, sizeof one);
    errno = saved;
}

} // namespace

signal_watch::signal_watch() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!fd_) sys::throw_errno("cannot make an event descriptor");
    handler_fd = fd_.get();
    struct sigaction action {};
    // Without SA_RESTART: a write that a slow terminal holds up is interrupted.
    action.sa_handler = note_signal;
    ::sigaction(SIGINT, &action, &int_before_);
    ::sigaction(SIGTERM, &action, &term_before_);
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, &pipe_before_);
}

signal_watch::~signal_watch() {
    ::sigaction(SIGINT, &int_before_, nullptr);
    ::sigaction(SIGTERM, &term_before_, nullptr);
    ::sigaction(SIGPIPE, &pipe_before_, nullptr);
    handler_fd = -1;
}

bool signal_watch::take() {
    std::uint64_t count = 0;
    return ::read(fd_.get(), &count, sizeof count) == sizeof count;
}

} // namespace sandboxd::cli
