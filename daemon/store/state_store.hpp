// state.json on disk: read once at the start, replaced as a whole whenever a record changes.
//
// Writing (with its fsyncs) happens on a pool thread of its own, one write at a time; saves asked
// for while one is under way are joined into the next. A save is done only when everything it was
// asked to keep is on disk. The directory belongs to the holder of the instance lock.
#pragma once

#include "store/key_book.hpp"
#include "store/state_file.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::store {

struct loaded_state {
    saved_state state;
    // What a person should know: a file that could not be read and where it was kept, records left
    // out. Health shows it.
    std::vector<std::string> complaints;
};

class state_store {
public:
    state_store(boost::asio::any_io_executor executor, std::filesystem::path directory);
    ~state_store(); // waits for a write under way

    // An unreadable file is renamed to state.json.bad (or .bad.2 and so on: an older one is never
    // overwritten) and said so. Throws std::system_error if it exists and cannot even be opened:
    // going on would overwrite it.
    loaded_state load();

    // Completes when `what`, or what a later call brought, is on disk. Throws std::system_error
    // if it is not. Not cancellable: a state that was told to be kept is kept.
    boost::asio::awaitable<void> save(saved_state what);

    // The key that such a digest stands for, if it was ever saved, even if state.json is lost.
    std::optional<core::sandbox_key> key_of(std::string_view digest) const {
        return keys_.find(digest);
    }

    // Why the last write failed; empty if it did not.
    const std::string& trouble() const noexcept;

private:
    struct shared;
    std::shared_ptr<shared> shared_;
    std::filesystem::path directory_;
    key_book keys_; // of all that was saved
};

} // namespace sandboxd::store
