// Small files in a sandbox whose content proves something, and which any command that is run there
// can tell on its way, at no cost.
//
// An interface: who wants something proved implements it, who runs commands asks it. It outlives
// every command. On the daemon's one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::core {

inline constexpr std::size_t most_marks = 4; // of one command

class mark_board {
public:
    virtual ~mark_board() = default;
    // Paths, at most most_marks.
    virtual std::vector<std::string> marks(const std::string& sandbox_id) = 0;
    // What was in them (nothing: could not be read) before a command started that was given
    // `paths`. Comes from inside the sandbox, so it proves nothing that would harm anybody else.
    virtual void on_marks(const std::string& sandbox_id, const std::vector<std::string>& paths,
                          const std::vector<std::optional<std::string>>& contents) = 0;
};

} // namespace sandboxd::core
