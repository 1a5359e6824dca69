// What the transfers share: threads for files and archives, manifests, locks, the line's speed. Of
// this directory only.
//
// Shared by the service and the transfers under way. Everything but `pool`'s tasks runs on the
// daemon's one thread.
#pragma once

#include "base/condition.hpp"
#include "core/sandbox_record.hpp"
#include "sandbox/account.hpp"
#include "sandbox/manager.hpp"
#include "sync/archive_reader.hpp"
#include "sync/manifest_store.hpp"
#include "sync/pace.hpp"
#include "sync/remove_tree.hpp"
#include "sync/service.hpp"
#include "sync/witnesses.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sandboxd::sync {

inline constexpr std::size_t pool_threads = 4;

struct workshop {
    workshop(boost::asio::any_io_executor daemon, sandbox::manager& sandboxes,
             sandbox::account& whose, const std::filesystem::path& state_dir);

    boost::asio::any_io_executor executor;
    sandbox::manager& manager;
    sandbox::account& account;
    std::filesystem::path state; // spool files are made here
    std::filesystem::path stages;
    manifest_store manifests;
    pace upload;
    pace download;

    std::atomic<bool> stopping = false;
    // A stop waits no longer for what has to be tidied up on this machine.
    deadline tidy_until = std::chrono::steady_clock::time_point::max();
    std::optional<boost::asio::thread_pool> pool; // once it is needed
    std::list<boost::asio::thread_pool> apart;    // threads for one task each
    std::set<std::weak_ptr<part_feed>, std::owner_less<>> feeds;

    // Operations under way, by the sandbox they are for: what others have left there is swept.
    std::map<std::string, std::set<std::string>> live;
    // What all operations of this daemon, and of no other, are called first.
    const std::string run;
    std::uint32_t operations = 0; // that have begun

    // What commands are asked about, of the sandboxes that had any since the daemon began.
    std::map<std::string, witnesses> watched;
    std::mt19937 chance{std::random_device()()};
    // How often a sandbox's commands have told of something that is gone: what was looked at before
    // the last time settles nothing.
    std::map<std::string, std::uint64_t> warnings;

    struct lock_state {
        explicit lock_state(boost::asio::any_io_executor executor) : changed(std::move(executor)) {}
        int taken = 0; // how often
        condition changed;
    };
    using lock_map = std::map<core::sandbox_key, std::shared_ptr<lock_state>>;
    lock_map locks;
    lock_map fetches;

    // Runs `what` on another thread. Its exception comes out. It cannot be cancelled: what it works
    // with is the caller's. For the daemon's own files, which only the machine itself can delay.
    template <class F>
    boost::asio::awaitable<std::invoke_result_t<F>> elsewhere(F what) {
        if (!pool) pool.emplace(pool_threads);
        co_return co_await run_on(*pool, what);
    }
    // ... on a thread that is nobody else's and ends with it: for what may wait for a sandbox,
    // takes as long as an archive is large, or may be on a mount that hangs.
    template <class F>
    boost::asio::awaitable<std::invoke_result_t<F>> on_its_own(F what) {
        const own_thread mine(apart);
        co_return co_await run_on(*mine.thread, what);
    }

    // The record of the key's sandbox, if there is one of this account.
    std::optional<core::sandbox_record> known(const core::sandbox_key& key) const;
    std::string manifest_name(const std::string& sandbox_id) const;
    boost::asio::awaitable<manifest> load(std::string sandbox_id);
    boost::asio::awaitable<void> save(std::string sandbox_id, const manifest& what);
    // What commands in that sandbox are asked about.
    witnesses& watch(const std::string& sandbox_id);
    // Whether something of what the manifest says is known, or has to be expected, to be gone.
    bool doubted(const std::string& sandbox_id) const;
    void doubt(const std::string& sandbox_id);
    void settle(const std::string& sandbox_id);
    // Of sandboxes that no record knows any more.
    void forget_the_gone(const std::vector<core::sandbox_record>& records);
    std::vector<std::string> live_in(const std::string& sandbox_id) const;

private:
    struct own_thread {
        std::list<boost::asio::thread_pool>& of;
        std::list<boost::asio::thread_pool>::iterator thread;
        explicit own_thread(std::list<boost::asio::thread_pool>& all)
            : of(all), thread(all.emplace(all.end(), 1)) {}
        own_thread(const own_thread&) = delete;
        own_thread& operator=(const own_thread&) = delete;
        ~own_thread() { of.erase(thread); }
    };
    template <class F>
    static boost::asio::awaitable<std::invoke_result_t<F>> run_on(boost::asio::thread_pool& threads,
                                                                  F& what) {
        const auto run = [&what]() -> boost::asio::awaitable<std::invoke_result_t<F>> {
            co_return what();
        };
        co_return co_await boost::asio::co_spawn(
            threads, run,
            boost::asio::bind_cancellation_slot(boost::asio::cancellation_slot(),
                                                boost::asio::use_awaitable));
    }
};

// The right to change files of one key; or to fetch some, which a few may do at a time: each has a
// thread, and what it has packed takes room in the sandbox.
class key_lock {
public:
    // `shop` outlives the lock.
    static boost::asio::awaitable<key_lock> take(workshop& shop, core::sandbox_key key);
    static boost::asio::awaitable<key_lock> take_to_fetch(workshop& shop, core::sandbox_key key);
    key_lock(workshop::lock_map& locks, core::sandbox_key key,
             std::shared_ptr<workshop::lock_state> held)
        : locks_(locks), key_(std::move(key)), held_(std::move(held)) {}
    key_lock(key_lock&&) noexcept = default;
    key_lock& operator=(key_lock&&) = delete;
    ~key_lock();

private:
    workshop::lock_map& locks_;
    core::sandbox_key key_;
    std::shared_ptr<workshop::lock_state> held_;
};

// An operation's name, as long as its things in the sandbox are wanted. It tells which of two is
// the older: what is swept for one goes by what was live when it was asked for, and others may have
// begun since.
class operation_name {
public:
    operation_name(std::shared_ptr<workshop> shop, std::string sandbox_id);
    operation_name(const operation_name&) = delete;
    operation_name& operator=(const operation_name&) = delete;
    ~operation_name();
    const std::string& text() const noexcept { return text_; }

private:
    std::shared_ptr<workshop> shop_;
    std::string sandbox_id_;
    std::string text_;
};

// Calls `tell` now and then until `done`, which ends it at once by cancelling `tick`.
boost::asio::awaitable<void> keep_telling(boost::asio::steady_timer& tick, const bool& done,
                                          std::function<void()> tell);

// no_space of this machine, not of a sandbox.
[[noreturn]] void throw_no_space_here(const std::string& text);
// errno of the host as an error for the client: `doing` completes "while ...".
[[noreturn]] void throw_host_trouble(const std::system_error& problem, std::string_view doing);

// push.cpp and fetch.cpp.
boost::asio::awaitable<push_result> run_push(std::shared_ptr<workshop> shop, push_request request,
                                             listeners who);
boost::asio::awaitable<fetch_result> run_fetch(std::shared_ptr<workshop> shop,
                                               fetch_request request, listeners who);

} // namespace sandboxd::sync
