#include "sync/witnesses.hpp"

#include "sync/path.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace sandboxd::sync {
namespace {

constexpr std::size_t most_witnesses = 1024; // in memory, of one sandbox
constexpr std::size_t longest_path = 512;    // four have to fit into a command line

// The uppermost directory that was pushed and `directory` belongs to, else `directory` itself.
std::string_view tree_of(const manifest& all, std::string_view directory) {
    for (std::size_t end = workspace.size(); end < directory.size();) {
        end = std::min(directory.find('/', end + 1), directory.size());
        const manifest_entry* found = all.find(std::string(directory.substr(0, end)));
        if (found != nullptr && found->kind == file_kind::directory) {
            return directory.substr(0, end);
        }
    }
    return directory;
}

} // namespace

witnesses::witnesses(const manifest& of, std::mt19937& chance) : nothing_(of.entries.empty()) {
    std::map<std::string_view, std::vector<const std::string*>> found;
    std::string_view directory; // of the one before, most often the same
    std::vector<const std::string*>* tree_paths = nullptr;
    for (const auto& [path, entry] : of.entries) {
        if (path.size() > longest_path) continue;
        // A directory is of its own tree: it may be all there is of that.
        const std::string_view in =
            entry.kind == file_kind::directory ? std::string_view(path) : parent_of(path);
        if (tree_paths == nullptr || in != directory) {
            directory = in;
            tree_paths = &found[tree_of(of, directory)];
        }
        tree_paths->push_back(&path);
    }
    const std::size_t share = std::max<std::size_t>(1, most_witnesses / (found.size() + 1));
    for (auto& [name, all] : found) {
        std::shuffle(all.begin(), all.end(), chance);
        tree& made = trees_.emplace_back();
        for (std::size_t i = 0; i < std::min(share, all.size()); ++i)
            made.paths.push_back(*all[i]);
    }
    std::shuffle(trees_.begin(), trees_.end(), chance);
    trees_.resize(std::min(trees_.size(), most_witnesses));
}

std::vector<std::string> witnesses::next(std::size_t most) {
    std::vector<std::string> chosen;
    for (std::size_t i = 0; i < most && !trees_.empty(); ++i) {
        tree& from = trees_[turn_++ % trees_.size()];
        const std::string& path = from.paths[from.turn++ % from.paths.size()];
        if (std::find(chosen.begin(), chosen.end(), path) == chosen.end()) chosen.push_back(path);
    }
    return chosen;
}

void witnesses::dismiss(const std::string& path) {
    for (tree& each : trees_)
        std::erase(each.paths, path);
    std::erase_if(trees_, [](const tree& each) { return each.paths.empty(); });
}

} // namespace sandboxd::sync
