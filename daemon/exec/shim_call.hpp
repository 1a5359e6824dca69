// Short calls of the shim: what they print is read here, by all but the command's own line.
#pragma once

#include "cloud/failure.hpp"
#include "core/shim_frames.hpp"
#include "sandbox/account.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::exec {

struct shim_words {
    std::optional<cloud::exec_event> end; // the platform's; nothing: `take` had enough before that
    std::string broken;                   // why it is not what a shim prints; empty: it is
    std::string said;                     // on stderr, the beginning of it, for people
    bool greeted = false;
};
// Reads until `take` answers false, or it ends. Waits without limit: the caller owns the deadline,
// and the stream.
boost::asio::awaitable<shim_words> read_shim(cloud::exec_stream& stream,
                                             std::function<bool(core::shim_frame&)> take);

struct shim_reply {
    std::optional<core::shim_note> note;   // the frame that was wanted, or an `error`
    std::optional<cloud::failure> failure; // else: the request failed, or its stream was cut
    bool spoke = false;                    // else: the shim has said something, but not that

    // Not a word: the shim may not be there.
    bool silent() const noexcept { return !note && !failure && !spoke; }
};

// `wanted`: the frame's name. `patience`: from the beginning of the platform's answer to that
// frame; after that it is a failure.
boost::asio::awaitable<shim_reply> call_shim(boost::asio::any_io_executor executor,
                                             sandbox::account& account, std::string sandbox_id,
                                             std::vector<std::string> argv, std::string wanted,
                                             std::chrono::milliseconds patience);

// The shim has said its last word and the platform is about to: reading that too gives the
// connection back to the pool, where the next command finds it warm. Goes on by itself.
void read_to_the_end(boost::asio::any_io_executor executor,
                     std::unique_ptr<cloud::exec_stream> stream);

} // namespace sandboxd::exec
