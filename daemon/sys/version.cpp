#include "sys/version.hpp"

namespace sandboxd::sys {

std::string_view version() noexcept {
    return SANDBOXD_VERSION;
}

} // namespace sandboxd::sys
