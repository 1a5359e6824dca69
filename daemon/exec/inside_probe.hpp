// Asks the shim of a sandbox what still runs there, for the idle reaper and the queue for places.
//
// Lives as long as the daemon; keeps nothing. A question is one exec, two and an upload where the
// shim has to be put (back) in its place first.
#pragma once

#include "exec/shim_keeper.hpp"
#include "sandbox/background_probe.hpp"

#include <boost/asio/any_io_executor.hpp>

#include <optional>

namespace sandboxd::exec {

class inside_probe final : public sandbox::background_probe {
public:
    inside_probe(boost::asio::any_io_executor executor, sandbox::account& account,
                 shim_keeper& keeper)
        : executor_(std::move(executor)), account_(account), keeper_(keeper) {}

    boost::asio::awaitable<sandbox::background_answer> ask(std::string sandbox_id) override;
    boost::asio::awaitable<void> keep_awake(std::string sandbox_id) override;

private:
    // Nothing: the shim is not there.
    boost::asio::awaitable<std::optional<sandbox::background_answer>>
    ask_shim(std::string sandbox_id);

    boost::asio::any_io_executor executor_;
    sandbox::account& account_;
    shim_keeper& keeper_;
};

} // namespace sandboxd::exec
