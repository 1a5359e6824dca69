// What of all that was pushed into a sandbox its commands are asked about: a command tells whether
// a few paths are there at no cost, so that what was removed is noticed.
//
// Pure. Trees (a pushed directory; of single files, the one they are in) take turns, and so do the
// paths of each, as there may be many of both. Which come first is left to chance: after a push
// the turns begin anew, and every tree is to have one in the end.
#pragma once

#include "sync/manifest.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace sandboxd::sync {

class witnesses {
public:
    witnesses() = default;
    witnesses(const manifest& of, std::mt19937& chance);

    // Nothing was pushed.
    bool nothing_pushed() const noexcept { return nothing_; }
    // At most `most` different paths, other ones each time.
    std::vector<std::string> next(std::size_t most);
    // It has told, and is asked no more.
    void dismiss(const std::string& path);

private:
    struct tree {
        std::vector<std::string> paths;
        std::size_t turn = 0;
    };
    bool nothing_ = true;
    std::vector<tree> trees_; // none without paths
    std::size_t turn_ = 0;
};

} // namespace sandboxd::sync
