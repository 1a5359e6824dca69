// The process that gives birth to cells.
//
// Forked before the emulator has any thread, socket or signal handler, so that what it clones
// starts from a clean, small image. It dies with the emulator (its socket ends, and
// PR_SET_PDEATHSIG), and the cells die with it.
#pragma once

#include "cell/protocol.hpp"
#include "event.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>

#include <memory>
#include <unordered_map>

namespace emulator::cell {

// Forks the launcher; the result is the emulator's end of its socket. In the launcher and every
// init the command line of main() is overwritten: it may hold an API key, and is what commands see
// of process 1. Throws std::system_error.
unique_fd fork_launcher(int argc, char** argv);

// The emulator's side.
class launcher {
public:
    struct birth {
        unique_fd pidfd;
        int pid = 0;
        int error = 0;
    };

    launcher(const boost::asio::any_io_executor& executor, unique_fd socket);

    // Clones an init which gets `control`. The answer comes as soon as the process exists, long
    // before it is ready.
    task<birth> launch(launch_order how, unique_fd control);

    // Ends when the launcher is gone, which the emulator cannot survive.
    task<void> run();

private:
    struct pending {
        explicit pending(const boost::asio::any_io_executor& executor) : answered(executor) {}
        event answered;
        bool done = false;
        birth result;
    };
    boost::asio::posix::stream_descriptor socket_;
    std::uint64_t next_cookie_ = 1;
    std::unordered_map<std::uint64_t, std::shared_ptr<pending>> pending_;
};

} // namespace emulator::cell
