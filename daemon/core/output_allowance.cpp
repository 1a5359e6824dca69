#include "core/output_allowance.hpp"

#include <algorithm>
#include <cctype>
#include <string>

namespace sandboxd::core {
namespace {

// Two frames: a follower looks at what it has printed after each.
constexpr std::uint64_t least = 256U << 10;

} // namespace

// The words are the platform's and not promised: others leave everything as it is, and then only
// the default protects.
void output_allowance::on_ended(std::string_view why, std::uint64_t received) {
    std::string text(why);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (text.find("output") == std::string::npos && text.find("too large") == std::string::npos) {
        return;
    }
    most_ = std::clamp(received / 2, least, most_);
}

} // namespace sandboxd::core
