// The manifests on disk: one file a sandbox in the state directory, replaced as a whole.
//
// Blocking. An unreadable manifest counts as none, which only means that everything is sent again.
#pragma once

#include "sync/manifest.hpp"

#include <filesystem>
#include <set>
#include <string>

namespace sandboxd::sync {

class manifest_store {
public:
    explicit manifest_store(std::filesystem::path directory) : directory_(std::move(directory)) {}

    // `sandbox`: names it for good, its account included.
    manifest load(const std::string& sandbox) const;
    void save(const manifest& what) const; // throws std::system_error
    // Of sandboxes that are no more nothing is kept.
    void keep_only(const std::set<std::string>& sandboxes) const;

    // A note beside the manifest, so that it can be made while a transfer works on that: something
    // of what it says is known to be gone.
    bool doubted(const std::string& sandbox) const;
    void set_doubted(const std::string& sandbox, bool doubted) const; // as far as the disk allows

private:
    std::filesystem::path file_of(const std::string& sandbox) const;
    std::filesystem::path doubt_of(const std::string& sandbox) const;

    std::filesystem::path directory_;
};

} // namespace sandboxd::sync
