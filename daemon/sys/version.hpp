// Which build this is.
#pragma once

#include <string_view>

namespace sandboxd::sys {

// "0.1.0": the project's version in the top CMakeLists.txt.
std::string_view version() noexcept;

} // namespace sandboxd::sys
