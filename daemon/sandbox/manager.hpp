// Owns every sandbox of ours: one entry a key, at most one life-cycle operation an entry at a time.
//
// Lifetimes. The manager lives as long as the daemon. An entry lives as long as the manager once
// its key was asked for (the record in it may say "absent"). An operation (bringing up, stopping,
// deleting) belongs to its entry and outlives whoever asked for it: askers wait for it and may
// leave; several who want the same share it. A lease keeps a sandbox from being stopped and lives
// as long as a command.
//
// One gate an entry: it is stopped only with no lease and no other operation; whoever comes while
// it is being stopped waits and then starts it. Everything runs on the daemon's one thread; nothing
// here locks.
//
// Errors are rpc_error; a cancelled wait throws system_error(operation_aborted) and leaves the
// operation running.
#pragma once

#include "base/condition.hpp"
#include "core/background.hpp"
#include "core/bring_up_fsm.hpp"
#include "core/sandbox_record.hpp"
#include "core/shut_down_fsm.hpp"
#include "core/slot_queue.hpp"
#include "sandbox/account.hpp"
#include "store/state_store.hpp"
#include "sys/peer.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace sandboxd::sandbox {

struct manager_options {
    std::string instance;        // of this daemon, see store/instance.hpp
    bool fresh_instance = false; // made just now: nothing can be its own yet
    std::string plan; // for new sandboxes whose asker names none; empty: the platform's default
    std::chrono::milliseconds idle_stop{300'000};
    std::chrono::milliseconds background_max{1'800'000};
    std::chrono::milliseconds orphan_grace{60'000};
    std::chrono::milliseconds retention{0}; // of stopped sandboxes; 0: for ever, as far as we go
    double budget_per_day = 0;              // US dollars; 0: none
    std::chrono::seconds server_timeout{3600};
    core::slot_limits slots;
};

// What an asker wants of a sandbox that may have to be made. One that exists stays as it was made.
struct wanted {
    // It may be started, but none is made: sandbox_not_found, or sandbox_gone if that turns out.
    bool only_existing = false;
    bool persistent = true;
    std::string plan; // empty: manager_options::plan
    // Counts for one that exists, too. 0: the option again; nothing: as it is.
    std::optional<std::chrono::seconds> idle_stop;
    // Who asks, if it is known: a one-session sandbox belongs to the process it was made for.
    std::optional<sys::process_identity> client;
    // Whether the asker would still hear the answer; empty: yes. One that would not leaves the
    // queue for a place.
    std::function<bool()> still_there;
};

// How a bring-up gets on, for the one who waits for it.
struct progress {
    core::life_state state = core::life_state::unknown;
    std::string text;
    std::chrono::milliseconds waited{0};
};
using progress_callback = std::function<void(const progress&)>;

struct ensured {
    bool created = false;    // this call's bring-up made it; of a lease: it is the first on what
                             // this daemon has made, so nothing is in there yet
    bool resumed = false;    // ... or started it
    bool state_lost = false; // the one known before was gone, with its files
};

// One sandbox, as status shows it.
struct view {
    core::sandbox_record record;
    std::optional<std::chrono::milliseconds> idle; // nothing while in use or not running
    std::vector<std::string> running;              // exec ids
    std::string awake_because;                     // empty when not running
    std::optional<double> usd_per_hour;            // now; nothing: its price is not known
    std::size_t holders = 0;
};

// What this daemon's sandboxes cost.
struct money {
    core::ledger total;
    double usd_per_hour = 0; // now
    double budget_per_day = 0;
    bool prices_known = true; // of all that runs
};

// A sandbox that carries this daemon's tags although no record knows it: the state was lost.
struct orphan {
    cloud::sandbox_info info;
    std::optional<core::sandbox_key> key; // if it is one that this daemon can think of
    std::optional<double> usd_per_hour;   // now; nothing: its price is not known
};

// Whose sandbox: a key, or the cloud's id of one that a record knows.
struct selector {
    std::optional<core::sandbox_key> key;
    std::string id;
};

enum class release_mode { keep, stop, terminate };
enum class release_action { kept, stopped, terminated, none };

// Of this directory only, see entry.hpp.
class entry;
struct operation;
struct pulse;
class background_probe;
struct background_answer; // background_probe.hpp
enum class operation_kind : int;

// A running sandbox, held. Movable; letting go of it is the end of the use.
class lease {
public:
    lease() = default;
    lease(std::shared_ptr<entry> held, ensured how, std::string exec_id,
          sys::process_identity client, std::function<void()> on_release);
    lease(lease&& other) noexcept = default;
    lease& operator=(lease&& other) noexcept;
    ~lease() { release(); }

    explicit operator bool() const noexcept { return entry_ != nullptr; }
    const core::sandbox_record& record() const noexcept;
    const ensured& how() const noexcept { return how_; } // it came to run
    // Whether somebody has had the sandbox stopped or deleted although it was held.
    bool overruled() const noexcept;
    void release() noexcept;

private:
    std::shared_ptr<entry> entry_;
    ensured how_;
    std::string exec_id_;
    std::uint64_t forced_ = 0; // entry::forced when it began
    std::function<void()> on_release_;
};

class manager {
public:
    manager(boost::asio::any_io_executor executor, account& account, store::state_store& store,
            manager_options options);
    ~manager();
    manager(const manager&) = delete;
    manager& operator=(const manager&) = delete;

    // Before anything else: what the last daemon knew.
    void adopt(store::saved_state saved);

    // Before run(); outlives the manager. Without one nothing is known of what runs in the
    // background.
    void look_inside_with(background_probe& probe) noexcept { probe_ = &probe; }

    // Reconciles with the cloud until that has worked once, then reaps; hands out places; runs
    // until cancelled.
    boost::asio::awaitable<void> run();
    bool reconciled() const noexcept { return reconciled_; }
    void reconcile_soon(); // the key has come, the network is back

    // A running sandbox for `key`: at once if it is known to run, else by the key's one bring-up.
    // `holder`, if given, is counted among those who want it kept.
    boost::asio::awaitable<ensured> ensure(core::sandbox_key key, wanted want,
                                           progress_callback on_progress,
                                           std::optional<sys::process_identity> holder);

    // The same, and held for a command.
    boost::asio::awaitable<lease> acquire(core::sandbox_key key, wanted want, std::string exec_id,
                                          progress_callback on_progress);
    // The same, but in the boot with that number only, as it runs now: nothing is started or made.
    // Throws generation_changed if it does not run (any more).
    boost::asio::awaitable<lease> hold_generation(core::sandbox_key key, std::uint64_t generation,
                                                  wanted want, std::string exec_id,
                                                  progress_callback on_progress);
    // What can be recognised after a restart of the daemon.
    core::owner_process remembered(const std::optional<sys::process_identity>& client) const;
    // That very sandbox, held for a command that `client` has had sent to it before, if it runs.
    // Starts nothing; waits until the platform's own view is known. Nothing: it does not run any
    // more, or belongs to another account, of which nothing can be known.
    boost::asio::awaitable<std::optional<lease>> hold_running(core::sandbox_key key,
                                                              std::string sandbox_id,
                                                              std::string exec_id,
                                                              core::owner_process client);
    // Counts `holder` among those who want the key's sandbox kept, until it releases it or its
    // process is gone.
    void hold(const core::sandbox_key& key, sys::process_identity holder);
    // The platform refused a command because the sandbox is not running or not there: look before
    // the next use.
    void distrust(const core::sandbox_key& key);

    boost::asio::awaitable<void> stop(selector which, bool force);
    boost::asio::awaitable<std::string> terminate(selector which,
                                                  bool force); // the id it had, or empty
    // Gives up the record of what belongs to another account, which nobody else can: the id it had,
    // or empty. What is of the account in use is refused with invalid_params.
    boost::asio::awaitable<std::string> forget(selector which);
    struct released {
        release_action action = release_action::none;
        std::size_t holders = 0; // others, alive
        std::string message;
    };
    boost::asio::awaitable<released> release(core::sandbox_key key, release_mode mode,
                                             sys::process_identity holder);

    // After so long without a call the platform stops the key's sandbox.
    std::chrono::seconds server_timeout(const core::sandbox_key& key) const;
    view get(const selector& which);                 // throws sandbox_not_found
    core::sandbox_key key_of(const selector& which); // throws sandbox_not_found
    // Whether that is a key's sandbox, and its newest boot.
    bool is_known(const core::sandbox_key& key, const std::string& sandbox_id,
                  std::uint64_t generation) const;
    // Of a key's newest boot; 0 before the first.
    std::uint64_t generation(const core::sandbox_key& key) const;
    std::vector<view> list();
    int active() const; // of the account, as far as is known
    // Made by this daemon, and unknown to it: what the last listing showed.
    std::vector<orphan> orphans() const;
    // Takes an orphan for the sandbox of a key, which must be the one it was made for.
    boost::asio::awaitable<void> adopt_orphan(std::string id, core::sandbox_key key);
    // What runs in an orphan.
    boost::asio::awaitable<background_answer> look_into_orphan(std::string id);
    boost::asio::awaitable<void> terminate_orphan(std::string id);

    money spending();
    core::budget_state budget();
    // Stopped for so long that the platform is about to delete it (D: after seven days).
    std::vector<core::sandbox_key> about_to_expire() const;

    std::size_t queued() const noexcept { return places_.waiting(); }
    const manager_options& options() const noexcept { return options_; }
    // What a person should look at: a reconcile that does not succeed.
    std::vector<std::string> complaints() const;
    // Records of another account or host than the one in use: nobody looks after their sandboxes.
    std::vector<core::sandbox_record> of_other_accounts() const;
    bool is_of_other_account(const core::sandbox_key& key) const;
    const std::string& unsaved() const noexcept { return store_.trouble(); } // empty: all is saved

private:
    std::shared_ptr<entry> entry_for(const core::sandbox_key& key);
    std::shared_ptr<entry> find(const selector& which);
    lease lease_of(const std::shared_ptr<entry>& each, ensured how, std::string exec_id,
                   sys::process_identity client);
    bool is_of_account(const entry& each) const;
    // Its key is another one, and no listing has told yet whether the account is.
    bool may_be_of_account(const entry& each) const;
    boost::asio::awaitable<void> compare();      // until that is known; throws why it cannot be
    void check_account(const entry& each) const; // throws not_configured, account_mismatch
    bool has_changed_account(const operation& op) const;
    std::shared_ptr<operation> begin(const std::shared_ptr<entry>& each, operation_kind kind,
                                     const wanted& want);
    boost::asio::awaitable<void> wait_for(std::shared_ptr<entry> each,
                                          std::shared_ptr<operation> op,
                                          progress_callback on_progress,
                                          std::function<bool()> still_there,
                                          int operation::*counted_as);
    // The id of the sandbox it was about; empty: there was none.
    boost::asio::awaitable<std::string> shut_down(std::shared_ptr<entry> each, operation_kind kind,
                                                  bool force);
    boost::asio::awaitable<bool> pause_while_wanted(std::shared_ptr<entry> each,
                                                    std::shared_ptr<operation> op,
                                                    std::chrono::milliseconds delay,
                                                    bool may_be_abandoned);
    boost::asio::awaitable<void> run_bring_up(std::shared_ptr<entry> each,
                                              std::shared_ptr<operation> op);
    boost::asio::awaitable<void> run_shut_down(std::shared_ptr<entry> each,
                                               std::shared_ptr<operation> op);
    void settle(const std::shared_ptr<entry>& each, const std::shared_ptr<operation>& op);
    boost::asio::awaitable<void> save(); // throws std::runtime_error
    boost::asio::awaitable<void> save_or_complain();
    boost::asio::awaitable<void> keep_saved(); // once the state could not be written
    boost::asio::awaitable<bool> reconcile();
    boost::asio::awaitable<void> reconcile_until_done();
    // `asked`: when the listing was.
    void note_others(const std::vector<cloud::sandbox_info>& listing,
                     std::chrono::milliseconds asked);
    boost::asio::awaitable<cloud::result<std::vector<cloud::sandbox_info>>> list_all();
    cloud::sandbox_info find_orphan(const std::string& id) const; // throws sandbox_not_found
    bool is_orphan(const std::string& id) const;
    std::size_t active_orphans() const;
    boost::asio::awaitable<cloud::result<void>> remove_remotely(std::string id);
    void delete_late(const cloud::sandbox_info& seen);
    std::chrono::milliseconds look_again_in() const;  // with a listing
    std::int64_t cloud_time() const;                  // unix seconds
    std::optional<std::int64_t> settled_time() const; // nothing: the cloud has not said it for sure
    std::optional<std::int64_t> usable_time() const;  // nothing: it is in doubt
    bool apply_listing(entry& each, const std::vector<cloud::sandbox_info>& listing);
    void apply_look(entry& each, const cloud::result<cloud::sandbox_info>& got);
    void apply_state(entry& each, const cloud::sandbox_info& seen);
    void rebind(const std::vector<cloud::sandbox_info>& listing);
    bool is_untouched_since(const entry& each, std::chrono::milliseconds asked) const;
    boost::asio::awaitable<void> look_up(const std::vector<std::shared_ptr<entry>>& missing,
                                         std::chrono::milliseconds asked);
    boost::asio::awaitable<void> reap();
    void stop_idle(const core::sandbox_key& key, const std::string& why);
    void ask_inside(const core::sandbox_key& key);
    boost::asio::awaitable<void> keep_awake();

    // ephemeral.cpp: one-session sandboxes and the processes they belong to.
    boost::asio::awaitable<void> mind_owners();
    bool owner_lives(const core::sandbox_record& record) const;
    // A command in a one-session sandbox that neither its owner nor `asker` has asked for, of a
    // process that lives; empty: none.
    std::string guests_command(const entry& each, const sys::process_identity& asker) const;
    bool clear_the_way(const std::shared_ptr<entry>& each, const wanted& want); // throws
    void adopt_owner(core::sandbox_record& record, const wanted& want) const;

    // accounts.cpp: money and age.
    boost::asio::awaitable<void> keep_accounts();
    void count_all();
    void notice_absence();
    bool is_billed(const entry& each) const;
    bool is_observed(const entry& each) const;
    bool given_up(const entry& each) const;
    std::chrono::seconds longest_unused(const core::sandbox_record& record) const;
    std::optional<double> price_of(const core::sandbox_record& record) const;
    std::optional<double> price_of(const std::string& plan) const;
    std::optional<rpc_error> over_budget();
    void retire_old();

    // slots.cpp: places among the active sandboxes.
    boost::asio::awaitable<void> tend_queue();
    void apply(const core::slot_queue::decision& decided);
    std::vector<core::slot_user> slot_users() const;
    boost::asio::awaitable<std::optional<rpc_error>>
    wait_for_place(std::shared_ptr<entry> each, std::shared_ptr<operation> op,
                   std::optional<cloud::failure> refused);
    std::string who_holds_places() const;

    bool is_in_use(const entry& each) const;
    bool is_idle(const entry& each) const; // running, and nothing of ours goes on there
    view view_of(const entry& each) const;
    std::string why_awake(const entry& each) const;
    std::chrono::seconds server_timeout(const core::sandbox_record& record) const;
    std::chrono::milliseconds idle_stop(const core::sandbox_record& record) const;
    void note_timeout(core::sandbox_record& record) const;

    // holders.cpp
    void let_go(entry& each, const sys::process_identity& holder);
    std::size_t count_holders(entry& each); // alive
    std::size_t count_others(entry& each, const sys::process_identity& asker);
    void restore_holders(entry& each);
    core::sandbox_record record_to_keep(entry& each);
    void save_soon();

    static std::chrono::milliseconds now(); // monotonic
    // Counts only while this process could be reached: idleness is told by this one.
    std::chrono::milliseconds awake() const;
    std::chrono::milliseconds tick() const;

    boost::asio::any_io_executor executor_;
    account& account_;
    store::state_store& store_;
    manager_options options_;
    std::map<core::sandbox_key, std::shared_ptr<entry>> entries_;
    std::shared_ptr<pulse> pulse_;
    core::slot_queue places_;
    background_probe* probe_ = nullptr;
    condition reconcile_wanted_;
    condition place_wanted_; // somebody waits for one
    bool reconcile_again_ = false;
    core::ledger ledger_;
    core::clock_mark clock_mark_;             // the newest of a usable clock
    std::chrono::milliseconds counted_at_{0}; // the cloud's clock; all costs
    store::price_list prices_;
    bool reconciled_ = false;
    bool listed_once_ = false;
    std::string compared_as_; // fingerprint of the key whose listing the records were compared with
    std::uint64_t comparisons_ = 0; // tried
    bool comparing_ = false;        // another one is under way
    std::vector<cloud::sandbox_info> orphans_;
    bool orphans_unseen_ = false;                     // as entry::unseen
    std::map<std::string, core::usage> orphan_usage_; // by id; since this daemon first saw them
    std::set<std::string> being_deleted_;             // late creations, by id
    // By id, when; awake clock. Until a listing that was asked for later has come.
    std::map<std::string, std::chrono::milliseconds> removed_;
    int others_active_ = 0; // as the last listing showed
    std::string boot_;      // of the machine
    std::optional<rpc_error> reconcile_trouble_;
};

} // namespace sandboxd::sandbox
