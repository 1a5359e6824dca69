// Paths in a sandbox of which it proves something that they are there, and what small files among
// them contain, and which any command that is run there can tell on its way, at no cost.
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
    // What was in them (nothing: they were not there) before a command started that was given
    // `paths`. Comes from inside the sandbox, so it proves nothing that would harm anybody else.
    virtual void on_marks(const std::string& sandbox_id, const std::vector<std::string>& paths,
                          const std::vector<std::optional<std::string>>& contents) = 0;
    // A command that cannot tell begins there, or has ended.
    virtual void on_unseen(const std::string& sandbox_id) = 0;
};

} // namespace sandboxd::core
