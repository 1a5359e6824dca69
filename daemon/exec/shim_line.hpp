// A command's line to its runner in the sandbox: the shell that carries out what core/shim_link
// decides. See line.hpp.
//
// Connections come and go underneath; what comes out is the command's output, byte for byte and in
// order, and one end. Reading is on demand only, so a caller that does not read holds up the
// command as a full pipe does.
#pragma once

#include "core/mark_board.hpp"
#include "core/shim_command.hpp"
#include "core/shim_link.hpp"
#include "exec/line.hpp"
#include "exec/shim_keeper.hpp"
#include "exec/upload.hpp"
#include "sandbox/account.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::exec {

class shim_line final : public line, public std::enable_shared_from_this<shim_line> {
public:
    struct plan {
        std::string sandbox_id;
        std::string exec_id;
        std::string digest;
        core::prepared_command run;         // `shim run ...`
        std::shared_ptr<start_files> files; // that put its uploads; there if it has any
        std::string cwd;                    // that was asked for
        std::chrono::seconds longest{0};    // of one connection
        bool installed = false;             // the shim is thought to be there
        std::optional<std::uint64_t> from;  // it was sent before: go on from there
        std::uint64_t safe = 0;             // the position before which all clients have it
        bool attended = true;
        std::vector<std::string> marks;    // that `run` asks for
        core::mark_board* board = nullptr; // is told what was in them
        std::uint64_t spool = 0;           // bytes, most that the sandbox keeps of its output; 0:
                                           // as its runner says
        // Whether the sandbox is still in the boot that the command was first sent to; empty: yes.
        std::function<bool()> same_boot;
        // Of a connection, before it is taken for dead: three of the shim's keepalives.
        std::chrono::milliseconds silence{45'000};
    };

    shim_line(boost::asio::any_io_executor executor, sandbox::account& account, shim_keeper& keeper,
              plan what);

    boost::asio::awaitable<line_opened> open() override;
    boost::asio::awaitable<line_event> next() override;
    boost::asio::awaitable<kill_outcome> kill(core::kill_signal signal) override;
    void hang_up() noexcept override;
    void acknowledged(std::uint64_t pos, bool only_then) override;
    void attend(bool somebody) override { plan_.attended = somebody; }
    void still_here() override;
    bool forgettable() const noexcept override { return link_.certain(); }
    bool heard() const noexcept override { return plan_.from.has_value() || link_.heard(); }
    bool would_not_start() const noexcept override { return link_.would_not_start(); }
    bool attached() const noexcept override { return false; }

private:
    // While next() or open() is under way.
    class reading {
    public:
        explicit reading(shim_line& of) : of_(of) { of_.reading_ = true; }
        reading(const reading&) = delete;
        reading& operator=(const reading&) = delete;
        ~reading() { of_.reading_ = false; }

    private:
        shim_line& of_;
    };

    boost::asio::awaitable<core::shim_link::step> perform(core::shim_link::step step);
    boost::asio::awaitable<core::shim_link::step> post(bool run);
    boost::asio::awaitable<core::shim_link::step> read();
    boost::asio::awaitable<std::optional<cloud::exec_event>> next_event();
    std::chrono::milliseconds spool_grace() const;
    std::uint64_t spool() const noexcept;
    void watch_age(std::chrono::milliseconds left);
    void note_spool(const core::shim_frame& frame);
    void note_marks(const core::shim_frame& frame);
    void acknowledge_soon();
    boost::asio::awaitable<void> keep_acknowledging();
    enum class told { yes, no, never };
    boost::asio::awaitable<told> send_acknowledgement(std::uint64_t pos);

    boost::asio::any_io_executor executor_;
    sandbox::account& account_;
    shim_keeper& keeper_;
    plan plan_;
    core::shim_link link_;
    core::shim_parser parser_;
    std::unique_ptr<cloud::exec_stream> stream_;
    core::shim_link::step step_;
    bool run_sent_ = false;
    std::optional<int> uploaded_for_; // which start of it its input was put into the sandbox for
    bool given_up_ = false;           // before anything was sent
    std::uint64_t safe_pos_ = 0;      // with all clients
    std::uint64_t release_ = 0;       // of that, what the shim is told to forget, by this line
    bool spool_full_ = false;         // or there is less room than was planned: it waits for a word
    bool tell_now_ = false;
    bool telling_ = false;
    bool closed_ = false; // nobody reads it any more
    bool reading_ = false;
    std::uint64_t received_ = 0; // on this connection
    boost::asio::steady_timer age_;
};

} // namespace sandboxd::exec
