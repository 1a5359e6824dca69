// A directory beside (or in) the place where something is to appear on the host: it is filled
// aside, and moved when it is whole.
//
// Blocking. Owned by one transfer; gone with it. A note in the state directory, which is there as
// long as anything of the stage is, makes that true of a daemon that was killed, or had no time, as
// well: the next one sweeps. Errors are std::system_error.
#pragma once

#include "sync/remove_tree.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sandboxd::sync {

class host_stage {
public:
    // In `parent`, which must exist. `notes`: where stages are written down. `until`: when to give
    // up removing; outlives this.
    host_stage(const std::filesystem::path& parent, std::filesystem::path notes,
               const std::string& operation, const deadline& until);
    ~host_stage(); // removes it, if nobody has
    host_stage(const host_stage&) = delete;
    host_stage& operator=(const host_stage&) = delete;

    const std::filesystem::path& path() const noexcept { return path_; } // real, 0700
    // With all that is in it, which may take its time. Whether it is gone.
    bool remove();

private:
    std::filesystem::path path_;
    std::filesystem::path note_;
    const deadline& until_;
    bool tried_ = false; // to remove it
};

// The directory for the stage of what is to be `target`: beside it, or in it where something is
// mounted there, as nothing can be moved into a mount from outside.
std::filesystem::path stage_parent(const std::filesystem::path& target);

// The notes that there are.
std::vector<std::filesystem::path> stage_notes(const std::filesystem::path& notes);
// Removes the stages that earlier daemons have left, by their notes.
void sweep_stages(const std::vector<std::filesystem::path>& notes, const deadline& until);

// Moves a file, link or tree `from` to `to`, both on one file system. What is there is replaced
// file by file, and directories are merged; links there are not followed, and devices, FIFOs and
// sockets are left alone. Directories that forbid
// writing, here or there, are no obstacle as long as they are this user's. One that was there keeps
// its mode: who may enter it is not for a sandbox to say. Answers what could not be moved, by its
// path below `to`.
struct not_moved {
    std::string path;
    std::string text;
    std::uint64_t files = 0; // and links, at it and below it
    std::uint64_t bytes = 0; // of their content
};
std::vector<not_moved> move_into_place(const std::filesystem::path& from,
                                       const std::filesystem::path& to);

} // namespace sandboxd::sync
