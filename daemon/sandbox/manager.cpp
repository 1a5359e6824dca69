#include "sandbox/manager.hpp"

#include "sandbox/entry.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds progress_period{1}; // at most so often the same is told again

} // namespace

lease::lease(std::shared_ptr<entry> held, ensured how, std::string exec_id,
             std::function<void()> on_release)
    : entry_(std::move(held)), how_(how), exec_id_(std::move(exec_id)),
      on_release_(std::move(on_release)) {
    entry_->leases.push_back(exec_id_);
}

lease& lease::operator=(lease&& other) noexcept {
    if (this != &other) {
        release();
        entry_ = std::move(other.entry_);
        how_ = other.how_;
        exec_id_ = std::move(other.exec_id_);
        on_release_ = std::move(other.on_release_);
    }
    return *this;
}

const core::sandbox_record& lease::record() const noexcept {
    return entry_->record;
}

void lease::release() noexcept {
    if (const std::shared_ptr<entry> held = std::exchange(entry_, nullptr)) {
        std::erase(held->leases, exec_id_);
        held->changed.notify_all();
        on_release_();
    }
}

manager::manager(asio::any_io_executor executor, account& account, store::state_store& store,
                 manager_options options)
    : executor_(executor), account_(account), store_(store), options_(std::move(options)),
      activity_(std::make_shared<condition>(executor)), reconcile_wanted_(executor) {}

manager::~manager() = default;

std::chrono::milliseconds manager::now() {
    // Stands still while the machine sleeps (CLOCK_MONOTONIC), so that sleep never counts as
    // idleness.
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
}

void manager::adopt(std::vector<core::sandbox_record> records) {
    for (core::sandbox_record& record : records) {
        const std::shared_ptr<entry> each = entry_for(record.key);
        each->record = std::move(record);
        each->last_used = now();
    }
}

std::shared_ptr<entry> manager::entry_for(const core::sandbox_key& key) {
    std::shared_ptr<entry>& slot = entries_[key];
    if (!slot) {
        slot = std::make_shared<entry>(executor_, key);
    }
    return slot;
}

std::shared_ptr<entry> manager::find(const selector& which) {
    for (const auto& [key, each] : entries_) {
        const bool known = each->current || each->record.state != core::life_state::absent ||
                           each->record.create_pending;
        if (known && (which.key ? key == *which.key
                                : !which.id.empty() && each->record.sandbox_id == which.id)) {
            return each;
        }
    }
    throw rpc_error(error_name::sandbox_not_found,
                    which.key ? "there is no sandbox for " + describe(*which.key)
                              : "no sandbox of ours has the id " + which.id);
}

core::sandbox_key manager::key_of(const selector& which) {
    return find(which)->record.key;
}

std::uint64_t manager::generation(const core::sandbox_key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? 0 : found->second->record.generation;
}

bool manager::is_of_account(const entry& each) const {
    return each.record.base_url == account_.base_url() &&
           each.record.fingerprint == account_.fingerprint();
}

void manager::check_account(const entry& each) const {
    account_.require_configured();
    const core::sandbox_record& record = each.record;
    if ((!record.sandbox_id.empty() || record.create_pending) && !is_of_account(each)) {
        rpc_error error(error_name::account_mismatch,
                        "the sandbox of " + describe(record.key) + " belongs to another account (" +
                            record.base_url + ", key fingerprint " + record.fingerprint + ")");
        error.sandbox_id = record.sandbox_id;
        throw error;
    }
}

asio::awaitable<ensured> manager::ensure(core::sandbox_key key, wanted want,
                                         progress_callback on_progress,
                                         std::optional<sys::process_identity> holder) {
    if (holder) {
        hold(key, *holder);
    }
    for (;;) {
        // Looked up each time: the entry of a one-session sandbox goes with it.
        const std::shared_ptr<entry> each = entry_for(key);
        check_account(*each);
        if (const std::shared_ptr<operation> op = each->current) {
            co_await wait_for(each, op, on_progress);
            if (op->kind != operation_kind::bring_up) {
                continue;
            }
            if (op->error) {
                throw *op->error;
            }
            co_return op->outcome;
        }
        if (each->record.state == core::life_state::running) {
            each->last_used = now();
            activity_->notify_all();
            co_return ensured{};
        }
        begin(each, operation_kind::bring_up, want);
    }
}

asio::awaitable<lease> manager::acquire(core::sandbox_key key, wanted want, std::string exec_id,
                                        progress_callback on_progress) {
    for (;;) {
        const ensured how = co_await ensure(key, want, on_progress, std::nullopt);
        const std::shared_ptr<entry> each = entry_for(key);
        // Between the bring-up's end and here somebody may have begun to stop it: then once more.
        if (!each->current && each->record.state == core::life_state::running) {
            co_return lease(each, how, std::move(exec_id),
                            [held = each.get(), weak = std::weak_ptr(activity_)] {
                                held->last_used = now(); // the lease has kept it alive until now
                                if (const std::shared_ptr<condition> activity = weak.lock()) {
                                    activity->notify_all();
                                }
                            });
        }
    }
}

void manager::hold(const core::sandbox_key& key, sys::process_identity holder) {
    if (holder.pid != 0) {
        entry_for(key)->holders.insert(holder);
    }
}

void manager::distrust(const core::sandbox_key& key) {
    const std::shared_ptr<entry> each = entry_for(key);
    if (!each->current && each->record.state == core::life_state::running) {
        each->record.state = core::life_state::unknown;
    }
}

asio::awaitable<void> manager::wait_for(std::shared_ptr<entry> each, std::shared_ptr<operation> op,
                                        progress_callback on_progress) {
    const std::chrono::milliseconds since = now();
    std::string said;
    std::chrono::milliseconds said_at = since;
    while (!op->done) {
        if (on_progress && (op->doing != said || now() - said_at >= progress_period)) {
            said = op->doing;
            said_at = now();
            on_progress({each->record.state, said, said_at - since});
        }
        co_await each->changed.wait();
    }
}

asio::awaitable<void> manager::shut_down(std::shared_ptr<entry> each, operation_kind kind,
                                         bool force) {
    for (;;) {
        check_account(*each);
        if (const std::shared_ptr<operation> op = each->current) {
            co_await wait_for(each, op, nullptr);
            if (op->kind == kind) {
                if (op->error) {
                    throw *op->error;
                }
                co_return;
            }
            continue;
        }
        const core::life_state state = each->record.state;
        if (state == core::life_state::absent ||
            (kind == operation_kind::stop && state == core::life_state::stopped)) {
            co_return;
        }
        if (!each->leases.empty() && !force) {
            rpc_error error(error_name::sandbox_busy,
                            std::to_string(each->leases.size()) +
                                (each->leases.size() == 1 ? " command is" : " commands are") +
                                " running in the sandbox of " + describe(each->record.key) + " (" +
                                each->leases.front() + ")");
            error.sandbox_id = each->record.sandbox_id;
            throw error;
        }
        begin(each, kind, {});
    }
}

asio::awaitable<void> manager::stop(selector which, bool force) {
    co_await shut_down(find(which), operation_kind::stop, force);
}

asio::awaitable<std::string> manager::terminate(selector which, bool force) {
    const std::shared_ptr<entry> each = find(which);
    std::string id = each->record.sandbox_id;
    co_await shut_down(each, operation_kind::terminate, force);
    co_return id;
}

asio::awaitable<manager::released> manager::release(core::sandbox_key key, release_mode mode,
                                                    sys::process_identity holder) {
    released result;
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
        co_return result;
    }
    const std::shared_ptr<entry> each = found->second;
    each->holders.erase(holder);
    result.holders = count_holders(*each);
    const core::life_state state = each->record.state;
    const bool nothing_to_do =
        state == core::life_state::absent ||
        (mode == release_mode::stop && state == core::life_state::stopped && !each->current);
    if (mode == release_mode::keep || nothing_to_do) {
        result.action = mode == release_mode::keep ? release_action::kept : release_action::none;
        co_return result;
    }
    if (result.holders != 0 || !each->leases.empty()) {
        result.action = release_action::kept;
        result.message =
            result.holders != 0
                ? std::to_string(result.holders) + " other client(s) still use this sandbox"
                : std::to_string(each->leases.size()) + " command(s) still run in it";
        co_return result;
    }
    co_await shut_down(
        each, mode == release_mode::stop ? operation_kind::stop : operation_kind::terminate, false);
    result.action =
        mode == release_mode::stop ? release_action::stopped : release_action::terminated;
    co_return result;
}

std::size_t manager::count_holders(entry& each) {
    std::erase_if(each.holders,
                  [](const sys::process_identity& holder) { return !sys::alive(holder); });
    return each.holders.size();
}

bool manager::is_in_use(const entry& each) const {
    return each.current || !each.leases.empty();
}

view manager::view_of(const entry& each) const {
    view shown{each.record, std::nullopt, each.leases, {}, each.holders.size()};
    if (each.current) {
        shown.awake_because = each.current->doing;
    } else if (!each.leases.empty()) {
        shown.awake_because = each.leases.size() == 1
                                  ? "1 command is running"
                                  : std::to_string(each.leases.size()) + " commands are running";
    } else if (each.record.state == core::life_state::running) {
        shown.idle = now() - each.last_used;
        const auto rest = std::max<std::chrono::milliseconds>(options_.idle_stop - *shown.idle,
                                                              std::chrono::seconds(0));
        shown.awake_because = "used until " + std::to_string(shown.idle->count() / 1000) +
                              " s ago, stops in " + std::to_string((rest.count() + 999) / 1000) +
                              " s";
    }
    return shown;
}

view manager::get(const selector& which) {
    const std::shared_ptr<entry> each = find(which);
    count_holders(*each);
    return view_of(*each);
}

std::vector<view> manager::list() {
    std::vector<view> all;
    for (const auto& [key, each] : entries_) {
        if (each->current || each->record.state != core::life_state::absent ||
            each->record.create_pending) {
            count_holders(*each);
            all.push_back(view_of(*each));
        }
    }
    return all;
}

int manager::active() const {
    return static_cast<int>(std::count_if(entries_.begin(), entries_.end(), [](const auto& each) {
        return core::is_active(each.second->record.state) || each.second->record.create_pending;
    }));
}

std::vector<std::string> manager::complaints() const {
    std::vector<std::string> texts;
    if (!reconcile_trouble_.empty()) {
        texts.push_back("the sandboxes could not be compared with what the platform says: " +
                        reconcile_trouble_);
    }
    if (!store_.trouble().empty()) {
        texts.push_back("the state could not be written: " + store_.trouble());
    }
    return texts;
}

} // namespace sandboxd::sandbox
