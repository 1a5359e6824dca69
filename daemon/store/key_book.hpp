// Every lasting sandbox key ever written down, in a file beside state.json: should that be lost,
// the sandboxes that the platform still has are found by the digests in their tags, and this file
// tells whose they are.
//
// One JSON object a line, appended without fsync: a second copy, whose loss costs convenience and
// no sandbox. Torn and foreign lines are ignored. The directory belongs to the holder of the
// instance lock.
#pragma once

#include "core/sandbox_record.hpp"

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::store {

class key_book {
public:
    static constexpr std::size_t most = 4'096; // the oldest are forgotten

    explicit key_book(const std::filesystem::path& directory) : file_(directory / "sandbox-keys") {}

    void load();
    // What cannot be written is tried again with the next call for the same key.
    void add(const core::sandbox_key& key);
    std::optional<core::sandbox_key> find(std::string_view digest) const;

private:
    void take(const core::sandbox_key& key, std::string digest);
    bool append(const std::string& line);
    std::string whole() const;

    std::filesystem::path file_;
    std::map<std::string, core::sandbox_key, std::less<>> keys_; // by core::key_digest
    std::deque<std::string> order_;                              // digests, oldest first
    bool torn_ = false; // the last line in the file may lack its end
};

} // namespace sandboxd::store
