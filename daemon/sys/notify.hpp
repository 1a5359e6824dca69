// Tells the service manager how we are: the sd_notify protocol (man 3 sd_notify), without
// libsystemd.
#pragma once

#include "sys/fd.hpp"

#include <string>
#include <string_view>

namespace sandboxd::sys {

// Each call is one datagram and never blocks; without a manager it does nothing. Failures are not
// errors: the manager's own time-out tells of them. The status is one line for people.
class notifier {
public:
    // Takes NOTIFY_SOCKET out of the environment, so that nothing started from here can speak for
    // us.
    static notifier from_environment();
    // `address`: a path, "@name" for an abstract socket, or "" for none.
    explicit notifier(std::string_view address);

    void ready(std::string_view status) const;
    void stopping(std::string_view status) const;
    void status(std::string_view text) const;

private:
    void send(const std::string& message) const;

    unique_fd fd_; // connected
};

} // namespace sandboxd::sys
