// errno as an exception.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace sandboxd::sys {

// `what`: what could not be done, with the path: "cannot open /x/y".
[[noreturn]] inline void throw_errno(const std::string& what, int error = errno) {
    throw std::system_error(error, std::generic_category(), what);
}

} // namespace sandboxd::sys
