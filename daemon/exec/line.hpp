// How a session talks to its command in the sandbox: one line a command, of one of two kinds.
//
// shim_line has the in-sandbox runner at the other end: connections come and go, bytes are exact.
// attached_line is the platform's own exec, for sandboxes where the shim cannot run: the command
// lives and dies with one connection. A line is owned by its session and used by one reader at a
// time; kill() may run beside it. Calls can be cancelled; hang_up() lets go of the connection, and
// must not be called while next() or open() is under way.
#pragma once

#include "base/error.hpp"
#include "cloud/client.hpp"
#include "core/command.hpp"
#include "core/exec_fsm.hpp"

#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

namespace sandboxd::exec {

struct line_open {};     // the command runs or is about to
struct line_unsuitable { // this kind of line does not work in that sandbox; nothing has run
    std::string why;
};
// Nothing certain, or certainly not run: as core/exec_fsm's on_send_failed and on_not_sent take it.
using line_opened = std::variant<line_open, line_unsuitable, cloud::failure, rpc_error>;

struct line_output {
    struct place {
        std::uint64_t pos = 0;    // of the first byte, both streams counted together
        std::uint64_t offset = 0; // within its stream
    };
    bool is_stderr = false;
    std::optional<place> at; // where the line knows it: beyond the expected one is a gap
    std::string bytes;
};
// exec_exit: a verdict of the runner. The other three are the platform's.
using line_event = std::variant<line_output, core::exec_exit, cloud::exec_exited,
                                cloud::exec_refused, cloud::exec_cut>;

struct kill_outcome {
    std::string why; // that is not sure; empty: none of its processes is left
    core::kill_reach reach = core::kill_reach::so_far;
    // The sandbox was reached, and it could not be done from inside it. Where it was not reached,
    // it may be tried again.
    bool unkillable = false;
    bool unknown_sandbox = false; // the platform says that there is no such sandbox
};

class line {
public:
    virtual ~line() = default;
    virtual boost::asio::awaitable<line_opened> open() = 0;
    virtual boost::asio::awaitable<line_event> next() = 0;
    // Ends the command's processes.
    virtual boost::asio::awaitable<kill_outcome> kill(core::kill_signal signal) = 0;
    virtual void hang_up() noexcept = 0;
    // Output before `pos` is safe with all clients: it need not be kept any more. Said now and
    // then, and at once where the sandbox waits for it; `only_then`: no more than that.
    virtual void acknowledged(std::uint64_t, bool only_then) { static_cast<void>(only_then); }
    // Whether a client is there that will read on, be it slowly. Only what nobody attends may be
    // given up.
    virtual void attend(bool) {}
    // The client has made no room for a long time, but it is there.
    virtual void still_here() {}
    // Once the client knows its end, whatever the sandbox keeps of the command may go.
    virtual bool forgettable() const noexcept { return false; }
    // Its runner has said a word, on this line or an earlier one.
    virtual bool heard() const noexcept { return true; }
    // Never one, however often it was tried, for all that the platform took and ended each call.
    virtual bool would_not_start() const noexcept { return false; }
    virtual bool attached() const noexcept = 0; // the command depends on the connection

    // While it is opened: `then(true)` each time that the command itself goes out, what it needs
    // being in place; `then(false)` when that has failed, and before it is tried again.
    void when_posted(std::function<void(bool)> then) { posted_ = std::move(then); }

protected:
    void posted(bool out) {
        if (posted_) {
            posted_(out);
        }
    }

private:
    std::function<void(bool)> posted_;
};

// However a coroutine ends, the connection goes with it, not when the session is forgotten.
class hang_up {
public:
    explicit hang_up(line& which) : line_(&which) {}
    hang_up(const hang_up&) = delete;
    hang_up& operator=(const hang_up&) = delete;
    ~hang_up() {
        if (line_ != nullptr) {
            line_->hang_up();
        }
    }
    void leave_open() noexcept { line_ = nullptr; }

private:
    line* line_;
};

} // namespace sandboxd::exec
