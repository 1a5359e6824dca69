// A connection to the daemon that is made again when it is lost, for a caller with a loop of its
// own: the daemon is upgraded, or was killed and is started again, by systemd or by hand.
//
// That it is lost shows as daemon_gone, from here or from the connection; the caller hands it to
// lost(), and says what it wants anew once up() has a connection again. Where the daemon listens is
// looked up each time.
#pragma once

#include "cli/verb.hpp"

#include <chrono>
#include <optional>
#include <string>

namespace sandboxd::cli {

class returning_daemon {
public:
    // `patience`: how long it may be away.
    returning_daemon(const context& here, connection daemon, std::chrono::milliseconds patience)
        : here_(here), patience_(patience), daemon_(std::move(daemon)) {}

    // The connection, once its hello is answered; nullptr while there is none. Throws a failure
    // when patience is over, or what is there is no daemon of ours.
    connection* up();
    // To be polled for input, and then received from; -1: nothing to be read.
    int fd() const noexcept { return daemon_ ? daemon_->fd() : -1; }
    void receive() { daemon_->receive(); }
    // How long to wait for that, if all that came has been taken.
    std::chrono::milliseconds time_to_wait();

    // True: it was there until now, not only about to come back.
    bool lost(const std::string& why);
    // It has taken up what we want: from now on a loss is a new one.
    void settled() noexcept { away_.reset(); }

private:
    struct absence {
        std::string why;
        connection::clock::time_point until;
        connection::clock::time_point next_look;
    };

    const context& here_;
    std::chrono::milliseconds patience_;
    std::optional<connection> daemon_;
    std::optional<absence> away_;
};

} // namespace sandboxd::cli
