#include "core/shim_presence.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace sandboxd::core {
namespace {

// A shell that takes the file of another architecture for a script ends with a code of its own, as
// one does that meets a full disk: believed when it goes on.
constexpr int most_exits = 3;

struct ability {
    const char* field; // of the frame: 0 or an errno
    const char* name;
};
constexpr ability needed[] = {
    {"abstract", "named sockets"},      {"peercred", "the user at a socket's other end"},
    {"passfd", "files sent by socket"}, {"orphan", "processes that outlive their parents"},
    {"subreaper", "a subreaper"},       {"proc", "/proc"},
    {"claims", "files in /workspace"},
};
constexpr std::uint64_t largest_errno = 4095; // of Linux

} // namespace

std::string missing_in(const shim_note& probe) {
    if (probe.number("ok") == 1U) return {};
    std::string all;
    for (const ability& each : needed) {
        const std::uint64_t error = probe.number(each.field).value_or(0);
        if (error == 0) continue;
        all += all.empty() ? "" : ", ";
        all += each.name;
        const auto code = static_cast<int>(std::min(error, largest_errno));
        all += " (" + std::generic_category().message(code) + ")";
    }
    return all.empty() ? "it does not say what" : all;
}

void shim_presence::on_use(std::uint64_t generation, milliseconds now) {
    const bool booted = generation_ && *generation_ != generation;
    generation_ = generation;
    if (!unusable_.empty() && (booted || now - unusable_since_ >= look_again_)) {
        unusable_.clear();
        exits_ = 0;
    }
}

shim_presence::finding shim_presence::on_probe(milliseconds now, const std::string& lacks) {
    if (!lacks.empty()) {
        on_unusable(now, "the sandbox lacks what the shim needs: " + lacks);
        return {verdict::unusable, unusable_};
    }
    absent_ = false;
    exits_ = 0;
    unusable_.clear();
    return {verdict::works, {}};
}

shim_presence::finding shim_presence::on_exited(milliseconds now, int code,
                                                const std::string& said) {
    std::string why = "the shim does not run there (code " + std::to_string(code) +
                      (said.empty() ? "" : ": " + said) + ")";
    if (code == 126 || code == 127 || ++exits_ >= most_exits) {
        on_unusable(now, std::move(why));
        return {verdict::unusable, unusable_};
    }
    return {verdict::failed, std::move(why)};
}

void shim_presence::on_unusable(milliseconds now, std::string why) {
    unusable_ = std::move(why);
    unusable_since_ = now;
    absent_ = true;
}

} // namespace sandboxd::core
