// Puts a command's input in place, from memory or from a file.
#pragma once

#include "core/command.hpp"
#include "sandbox/account.hpp"

#include <boost/asio/awaitable.hpp>

#include <string>

namespace sandboxd::exec {

boost::asio::awaitable<cloud::result<void>> put_upload(sandbox::account& account,
                                                       std::string sandbox_id, core::upload what);

} // namespace sandboxd::exec
