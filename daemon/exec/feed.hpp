// One client's view of a command's output, from a position of its own on.
//
// Owned by its session; a connection holds it while it is attached. Output comes into it from a
// line of its own, so that a client that does not read holds up nobody else's. It is detached when
// its client is gone: the first feed then goes on without one, any other ends.
#pragma once

#include "base/condition.hpp"
#include "core/output_queue.hpp"
#include "core/sandbox_record.hpp"
#include "exec/line.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace sandboxd::exec {

class feed;
class session;

// Who gets a command's output. Called on the daemon's thread; must not call back at once.
class subscriber {
public:
    virtual ~subscriber() = default;
    // There is something to take() or the exit to tell; said again only after the queue was found
    // empty.
    virtual void on_ready(const std::shared_ptr<feed>& which) = 0;
    // The sandbox is being brought up for it.
    virtual void on_progress(const core::sandbox_key& key, const sandbox::progress& progress) = 0;
};

class feed : public std::enable_shared_from_this<feed> {
public:
    // From position `from` on, with a window of so many bytes.
    feed(boost::asio::any_io_executor executor, std::weak_ptr<session> of,
         std::weak_ptr<subscriber> to, std::uint64_t from, std::size_t window)
        : of_(std::move(of)), to_(std::move(to)), queue_(window, from), room_(std::move(executor)) {
    }

    // For its client's connection. The next piece of at most `most` bytes, if the window allows.
    std::optional<core::output_chunk> take(std::size_t most);
    // False: more was acknowledged than was sent.
    bool acknowledge(std::uint64_t pos);
    // All output has been taken and the exit stands: nothing follows.
    bool exit_due() const;
    // The client has been told the exit.
    void told();
    // The client is gone.
    void detach();

    std::shared_ptr<session> of() const noexcept { return of_.lock(); }
    bool attended() const noexcept { return !to_.expired(); }
    std::uint64_t dropped() const noexcept { return queue_.dropped(); }
    bool is_owners() const noexcept { return owner_; } // of the one who asked for the command

private:
    friend class session;

    void ready();

    std::weak_ptr<session> of_;
    std::weak_ptr<subscriber> to_;
    bool owner_ = false; // that one asked for the command
    core::output_queue queue_;
    condition room_; // there may be room in the queue again, or nobody to keep room for
    std::shared_ptr<line> line_;
    std::weak_ptr<boost::asio::cancellation_signal> reader_; // stops the coroutine that fills it
    bool over_ = false;                                      // nothing more comes into it
    bool overdue_ = false; // its client has read nothing for so long that nobody waits for it
};

} // namespace sandboxd::exec
