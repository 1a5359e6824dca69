// What of a push has to go, what the sandbox has, what it turned out not to take, and what the
// manifest says of all that.
//
// Owned by one push, and used by one thread at a time; only select() takes its time, as it may read
// files. Nothing here talks to the sandbox or writes anything down.
#pragma once

#include "sync/archive_writer.hpp"
#include "sync/helper.hpp"
#include "sync/manifest.hpp"
#include "sync/scan.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sandboxd::sync {

class push_plan {
public:
    struct options {
        bool force = false;
        bool remember = true;
    };
    push_plan(options how, const std::atomic<bool>& stop) : how_(how), stop_(stop) {}

    void found(scanned what) { found_ = std::move(what); }
    const scanned& all() const noexcept { return found_; }
    // With another sandbox it begins anew.
    void begin(manifest remembered);
    // What has to go, into todo(): what is not unchanged, and neither placed nor given up yet.
    void select();
    const std::vector<local_entry>& todo() const noexcept { return todo_; }
    std::uint64_t unchanged() const noexcept { return unchanged_; }

    // Before the archive is unpacked: what it touches must not be believed before it is told of.
    // `into`: the name that a file gets in a directory that may be where it is to be; of such a
    // directory nothing else is touched.
    void unsettle(const std::string& into = {});
    // Files and links that we have put where todo() has a directory, or something below it.
    const std::vector<std::string>& ours() const noexcept { return ours_; }
    // What is counted as unchanged, for the sandbox to say if it is not there; of very many only
    // some, as one that is not there makes all be looked at. And the directories that would be made
    // on the way, for else nobody would see that they were gone.
    std::vector<std::string> claims() const;
    // A stretch of todo() that travels as one archive.
    struct stretch {
        std::size_t begin = 0;
        std::size_t size = 0; // entries
    };
    // The next one after `end`, of about `bytes` of content; of no entries when there is none left.
    // `most`: entries.
    stretch stretch_from(std::size_t end, std::uint64_t bytes, std::size_t most) const;
    std::span<const local_entry> entries(stretch which) const;
    std::uint64_t content_of(stretch which) const; // bytes of its files
    // The entries that its archive lacks cannot be read.
    void give_up_what_is_not_in(stretch which, const archive_writer& archive);
    // Of a push of a single file, before its note(): that is where it is.
    void redirect(const std::string& path);
    // What became of it; whether something of it has to go again.
    bool note(stretch which, const std::vector<sent_member>& members,
              const std::vector<helper_failure>& failed);
    void all_noted() noexcept { todo_.clear(); }
    // It is not there. What was placed by this very push is not placed once more.
    void forget(const std::string& path);

    const manifest& remembered() const noexcept { return remembered_; }
    bool take_changed() noexcept { return std::exchange(changed_, false); } // since the last time
    const std::map<std::string, manifest_entry>& placed() const noexcept { return placed_; }
    const std::vector<skipped_path>& skipped() const noexcept { return skipped_; }
    void give_up_the_rest(); // of todo(): it changed each time it was read

private:
    bool is_unchanged(const local_entry& each);
    void note_placed(const local_entry& entry, const manifest_entry& record);

    const options how_;
    const std::atomic<bool>& stop_;
    scanned found_;
    manifest remembered_;
    bool changed_ = false;
    std::vector<local_entry> todo_;
    std::vector<const local_entry*> claimed_; // into found_
    std::uint64_t unchanged_ = 0;
    std::vector<std::string> ours_;
    std::vector<std::string> parents_;             // of todo_, as far as they were pushed
    std::map<std::string, manifest_entry> placed_; // by this very push
    std::set<std::string> given_up_;               // cannot be placed, and are named
    std::vector<skipped_path> skipped_;
};

} // namespace sandboxd::sync
