// Asks the sandbox how a command has ended, without the output in front of it: where the client
// does not read that, or the connection that brings it has gone silent, the end would come late.
#pragma once

#include "core/exec_fsm.hpp"
#include "sandbox/account.hpp"

#include <boost/asio/awaitable.hpp>

#include <optional>
#include <string>

namespace sandboxd::exec {

// `shim`: where it lies. Nothing: no answer, or it knows of no end.
boost::asio::awaitable<std::optional<core::exec_exit>> ask_outcome(sandbox::account& account,
                                                                   std::string sandbox_id,
                                                                   std::string shim,
                                                                   std::string exec_id);

} // namespace sandboxd::exec
