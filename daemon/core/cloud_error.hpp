// What a failed cloud request means to the user: the error's name, and a sentence that says what
// was being done.
#pragma once

#include "base/error.hpp"
#include "cloud/failure.hpp"

#include <string_view>

namespace sandboxd::core {

// `doing` completes "while ..."; for example "creating the sandbox".
rpc_error error_from(const cloud::failure& failure, std::string_view doing);

// The same for what needs no machine and moves no data: a listing, the catalog, a stop, a delete.
// There a 404, a 413, a 503 or a word about the cap is the platform's own trouble; taken at face
// value a 404 to a listing (a wrong base URL) would tell somebody that the files are lost.
rpc_error plain_error_from(const cloud::failure& failure, std::string_view doing);

// The same for what asks for a machine (a create, a start): the cap and the platform's capacity do
// matter there, but a 404 that says "gone" or a 413 does not come from there.
rpc_error machine_error_from(const cloud::failure& failure, std::string_view doing);

// Whether asking again later may well succeed without anybody doing anything.
bool is_transient(const cloud::failure& failure) noexcept;

} // namespace sandboxd::core
