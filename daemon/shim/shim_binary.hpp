// The shim as it is put into sandboxes: a static executable, built beside the daemon and embedded
// in it.
//
// Constant for the life of the process; no errors. What it accepts and prints: frames.h.
#pragma once

#include <string_view>

namespace sandboxd::shim {

std::string_view binary();
// SHA-256 of binary(), 64 hexadecimal digits: belongs into the name of the file in the sandbox.
std::string_view hash();
// What the shim calls itself in its first frame (`build=`): differs whenever its sources do.
std::string_view build();
// The architecture it runs on, as uname(2) names it.
std::string_view architecture();

} // namespace sandboxd::shim
