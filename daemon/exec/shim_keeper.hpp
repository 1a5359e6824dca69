// Which sandboxes have the shim, and putting it there.
//
// Owned by the registry; lives as long as the daemon, since a sandbox's /workspace keeps the shim
// over stops. One installation a sandbox at a time, shared by all who need it.
#pragma once

#include "base/condition.hpp"
#include "cloud/failure.hpp"
#include "core/output_allowance.hpp"
#include "core/shim_presence.hpp"
#include "exec/shim_call.hpp"
#include "sandbox/account.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sandboxd::exec {

struct install_outcome {
    bool installed = false;
    std::optional<cloud::failure> failure; // something went wrong: says nothing of the shim
    std::string unusable;                  // the shim cannot run there, for this reason
};

// What one command may have kept of its output in its sandbox. Movable; what is still held of the
// share is given back with it.
class spool_share {
public:
    spool_share() = default;
    spool_share(std::shared_ptr<std::uint64_t> reserved, std::uint64_t bytes)
        : reserved_(std::move(reserved)), bytes_(bytes), held_(bytes) {
        *reserved_ += held_;
    }
    spool_share(spool_share&& other) noexcept
        : reserved_(std::move(other.reserved_)), bytes_(std::exchange(other.bytes_, 0)),
          held_(std::exchange(other.held_, 0)) {}
    spool_share& operator=(spool_share&& other) noexcept {
        std::swap(reserved_, other.reserved_);
        std::swap(bytes_, other.bytes_);
        std::swap(held_, other.held_);
        return *this;
    }
    ~spool_share() { hold_at_most(0); }
    std::uint64_t bytes() const noexcept { return bytes_; } // that the command was given
    // It will not need more any more.
    void hold_at_most(std::uint64_t most) noexcept {
        if (reserved_ && held_ > most) {
            *reserved_ -= held_ - most;
            held_ = most;
        }
    }

private:
    std::shared_ptr<std::uint64_t> reserved_; // of the sandbox, in its boot
    std::uint64_t bytes_ = 0;
    std::uint64_t held_ = 0;
};

struct keeper_options {
    // After so long without a client a full spool gives up its oldest bytes.
    std::chrono::milliseconds spool_grace{3'600'000};
    std::chrono::milliseconds answer{10'000};      // for the one word of a short call
    std::chrono::milliseconds install{45'000};     // for all of an installation
    std::chrono::milliseconds look_again{300'000}; // see core::shim_presence
};

class shim_keeper {
public:
    shim_keeper(boost::asio::any_io_executor executor, sandbox::account& account,
                keeper_options options = {});

    const std::string& path() const noexcept { return path_; } // in every sandbox
    std::chrono::milliseconds spool_grace() const noexcept { return options_.spool_grace; }
    core::output_allowance& output() noexcept { return output_; } // of the platform

    boost::asio::awaitable<install_outcome> install(std::string sandbox_id);

    // A short call, see shim_call.hpp, that may take `more` by itself. Where the shim does not say
    // a word a command may have removed it: it is put back, once, and called again.
    boost::asio::awaitable<shim_reply>
    call(std::string sandbox_id, std::vector<std::string> argv, std::string wanted,
         std::chrono::milliseconds more = std::chrono::milliseconds(0));

    // See core::shim_presence.
    void note_new(const std::string& sandbox_id) { at(sandbox_id).presence.on_created(); }
    void note_use(const std::string& sandbox_id, std::uint64_t generation);
    bool may_be_there(const std::string& sandbox_id) const;

    // Why commands of that sandbox run without the shim; nothing: they run with it, as far as is
    // known.
    std::optional<std::string> unusable(const std::string& sandbox_id) const;
    void set_unusable(const std::string& sandbox_id, std::string why);
    std::map<std::string, std::string> all_unusable() const; // by sandbox

    // A command was lost because its runner there was killed.
    void runner_gone(const std::string& sandbox_id);
    std::map<std::string, std::size_t> runners_gone() const; // how many, by sandbox

    // The client has been told the end of a command: its claim in the sandbox may go with the next
    // `run` there.
    void told(const std::string& sandbox_id, const std::string& exec_id);
    std::vector<std::string> take_told(const std::string& sandbox_id); // at most 16, oldest first

    static constexpr std::uint64_t smallest_spool = 1U << 20; // bytes

    // Nobody needs what it has printed before `pos` any more. Said once: what does not arrive, the
    // sandbox gives up in its own time.
    void release_output(const std::string& sandbox_id, const std::string& exec_id,
                        std::uint64_t pos);

    // All spools of a sandbox together stay within one bound: the more there are, the smaller the
    // next.
    spool_share share_of_spool(const std::string& sandbox_id);

private:
    struct place {
        place(boost::asio::any_io_executor executor, std::chrono::milliseconds look_again)
            : presence(look_again), changed(std::move(executor)) {}
        core::shim_presence presence;
        bool installing = false;
        install_outcome last;
        std::size_t runners_gone = 0;
        std::vector<std::string> told;
        std::uint64_t generation = 0; // last used
        // Bytes, by commands of that boot. No spool outlives it.
        std::shared_ptr<std::uint64_t> reserved = std::make_shared<std::uint64_t>(0);
        condition changed;
    };

    place& at(const std::string& sandbox_id);
    boost::asio::awaitable<install_outcome> install_in_time(std::string sandbox_id);
    boost::asio::awaitable<install_outcome> put_and_probe(std::string sandbox_id);

    boost::asio::any_io_executor executor_;
    sandbox::account& account_;
    keeper_options options_;
    core::output_allowance output_;
    std::string path_;
    std::map<std::string, std::shared_ptr<place>> places_;
};

} // namespace sandboxd::exec
