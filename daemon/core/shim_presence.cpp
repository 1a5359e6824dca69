#include "core/shim_presence.hpp"

#include <utility>

namespace sandboxd::core {
namespace {

// A shell that takes the file of another architecture for a script ends with a code of its own, as
// one does that meets a full disk: believed when it goes on.
constexpr int most_exits = 3;

} // namespace

void shim_presence::on_use(std::uint64_t generation, milliseconds now) {
    const bool booted = generation_ && *generation_ != generation;
    generation_ = generation;
    if (!unusable_.empty() && (booted || now - unusable_since_ >= look_again_)) {
        unusable_.clear();
        exits_ = 0;
    }
}

shim_presence::finding shim_presence::on_probe(milliseconds now, bool ok) {
    if (!ok) {
        on_unusable(now, "the sandbox lacks what the shim needs");
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
