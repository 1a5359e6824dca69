// Puts a command's input in place, from memory or from a file, and takes it away again.
#pragma once

#include "core/command.hpp"
#include "sandbox/account.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace sandboxd::exec {

boost::asio::awaitable<cloud::result<void>> put_upload(sandbox::account& account,
                                                       std::string sandbox_id, core::upload what);
// Said once: a sandbox that does not run keeps it, and is not started for that.
boost::asio::awaitable<void> remove_uploads(boost::asio::any_io_executor executor,
                                            sandbox::account& account, std::string sandbox_id,
                                            std::vector<std::string> paths);

// The files that one command finds when it starts. It takes them away itself; one that never
// started leaves them to us. Held by its session and its lines.
class start_files : public std::enable_shared_from_this<start_files> {
public:
    start_files(boost::asio::any_io_executor executor, sandbox::account& account)
        : executor_(std::move(executor)), account_(account) {}

    // As put_upload(); may be cancelled.
    boost::asio::awaitable<cloud::result<void>> put(std::string sandbox_id, core::upload what);
    // What may be there by now, of a command that will not start any more. Does not wait for it.
    void take_away();

private:
    boost::asio::awaitable<void> remove();

    boost::asio::any_io_executor executor_;
    sandbox::account& account_;
    std::string sandbox_id_; // the last one
    std::set<std::string> paths_;
    bool putting_ = false; // also for ever, of one that was cut short
};

} // namespace sandboxd::exec
