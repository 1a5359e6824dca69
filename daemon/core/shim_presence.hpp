// What is known of the shim in one sandbox: whether it may be there, and whether it can run there.
//
// That it cannot is believed only where something in the sandbox has said so, and never for good: a
// sandbox that was stopped and started may have another kernel or other mounts, and what has gone
// wrong once may go well later. Whatever else goes wrong with an installation is a failure that
// says nothing of the shim.
#pragma once

#include "core/backoff.hpp"
#include "core/shim_frames.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace sandboxd::core {

// What the shim cannot do without and a `probe` frame says not to be there, with the reasons, for
// people; empty if it says that all is well.
std::string missing_in(const shim_note& probe);

class shim_presence {
public:
    enum class verdict { works, unusable, failed };
    struct finding {
        verdict what = verdict::failed;
        std::string why; // for people, unless it works
    };

    // `look_again`: so long after it was found not to work it is tried again.
    explicit shim_presence(milliseconds look_again = milliseconds(300'000)) noexcept
        : look_again_(look_again) {}

    // The sandbox is new, so the shim cannot be there before it is put there.
    void on_created() noexcept { absent_ = true; }
    // A command is about to run in that boot of the sandbox.
    void on_use(std::uint64_t generation, milliseconds now);

    // How an installation ended: the shim looked around itself and lacks that (missing_in()), ...
    finding on_probe(milliseconds now, const std::string& lacks);
    // ... or the command that puts it there ended without it, and said that on stderr.
    finding on_exited(milliseconds now, int code, const std::string& said);
    // Found out elsewhere.
    void on_unusable(milliseconds now, std::string why);

    bool may_be_there() const noexcept { return !absent_; }
    // Why commands run without it; empty: they run with it, as far as is known.
    const std::string& unusable() const noexcept { return unusable_; }

private:
    milliseconds look_again_;
    bool absent_ = false;
    std::string unusable_;
    milliseconds unusable_since_{0};
    std::optional<std::uint64_t> generation_; // where that was found, if known
    int exits_ = 0;                           // in a row, without the shim's word
};

} // namespace sandboxd::core
