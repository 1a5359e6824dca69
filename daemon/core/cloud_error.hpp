// What a failed cloud request means to the user: the error's name, and a sentence that says what was being done.
#pragma once

#include "base/error.hpp"
#include "cloud/failure.hpp"

#include <string_view>

namespace sandboxd::core {

// `doing` completes "while ..."; for example "creating the sandbox".
rpc_error error_from(const cloud::failure& failure, std::string_view doing);

// Whether asking again later may well succeed without anybody doing anything.
bool is_transient(const cloud::failure& failure) noexcept;

} // namespace sandboxd::core
