// Finds commands by their id, across the daemon's own death, and forgets those that ended long ago.
//
// Owns the sessions and the journal; lives as long as the daemon. A command that is over and that
// nobody reads any more is kept as its record only. Those that ended last are remembered, and
// longer those that nobody was told of, so that an id is never taken for a new one by mistake, and
// its end can be told again.
#pragma once

#include "exec/session.hpp"
#include "store/exec_journal.hpp"

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sandboxd::exec {

struct registry_options {
    core::exec_limits limits;
    bool stop_if_unkillable = true; // see surroundings
    std::filesystem::path state_dir;
    core::mark_board* marks = nullptr; // see surroundings
    keeper_options shims;
};

class registry {
public:
    registry(boost::asio::any_io_executor executor, sandbox::manager& manager,
             sandbox::account& account, registry_options options);

    // What the last daemon left running is looked for; before anything is started.
    void restore();

    struct start_outcome {
        std::shared_ptr<feed> output;
        bool attached = false; // the id was known: nothing was started
    };
    // A known id with the same arguments attaches. `resume`: an id of which nothing is known was
    // accepted once, so it must not be started. Throws rpc_error: exec_id_in_use,
    // too_many_requests, exec_not_found, or what session's constructor and attach throw.
    start_outcome start(request request, view_request view, bool resume);
    std::shared_ptr<session> find(const std::string& exec_id); // throws exec_not_found
    std::vector<std::shared_ptr<session>> list(const std::optional<core::sandbox_key>& key);
    std::size_t running() const;
    shim_keeper& shims() noexcept { return shims_; }
    const shim_keeper& shims() const noexcept { return shims_; }
    std::uint64_t started() const noexcept { return started_; }
    const std::string& journal_trouble() const noexcept { return journal_.trouble(); }

private:
    std::shared_ptr<session> known(const std::string& exec_id);           // nothing: the id is new
    const core::exec_record* record_of(const std::string& exec_id) const; // null: the id is new
    void keep(const core::exec_record& record);
    void settle();
    void make_room(); // throws too_many_requests

    static constexpr std::size_t most = 4096;     // commands at once, ended ones included
    static constexpr std::size_t at_a_time = 64;  // forgotten, since looking for them takes long
    static constexpr std::size_t most_idle = 256; // ended ones that are still sessions

    surroundings around_;
    shim_keeper shims_;
    store::exec_journal journal_;
    std::map<std::string, std::shared_ptr<session>> sessions_;
    std::map<std::string, core::exec_record> over_; // ended, or never sent by an earlier daemon
    std::deque<std::string> ended_;                 // ids of sessions that have ended, oldest first
    std::deque<std::string> order_;                 // all ids, oldest first
    std::uint64_t started_ = 0;
};

} // namespace sandboxd::exec
