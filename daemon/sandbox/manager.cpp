#include "sandbox/manager.hpp"

#include "sandbox/entry.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds progress_period{1}; // at most so often the same is told again
constexpr sys::process_identity nobody{};

bool is_nothing_there(const rpc_error& error) {
    return error.name() == error_name::sandbox_gone ||
           error.name() == error_name::sandbox_not_found;
}

} // namespace

lease::lease(std::shared_ptr<entry> held, ensured how, std::string exec_id,
             sys::process_identity client, std::function<void()> on_release)
    : entry_(std::move(held)), how_(how), exec_id_(std::move(exec_id)), forced_(entry_->forced),
      on_release_(std::move(on_release)) {
    entry_->leases.push_back({exec_id_, client});
}

lease& lease::operator=(lease&& other) noexcept {
    if (this != &other) {
        release();
        entry_ = std::move(other.entry_);
        how_ = other.how_;
        exec_id_ = std::move(other.exec_id_);
        forced_ = other.forced_;
        on_release_ = std::move(other.on_release_);
    }
    return *this;
}

const core::sandbox_record& lease::record() const noexcept {
    return entry_->record;
}

bool lease::overruled() const noexcept {
    return entry_->forced != forced_;
}

void lease::release() noexcept {
    if (const std::shared_ptr<entry> held = std::exchange(entry_, nullptr)) {
        std::erase_if(held->leases,
                      [this](const holding& each) { return each.exec_id == exec_id_; });
        held->changed.notify_all();
        on_release_();
    }
}

manager::manager(asio::any_io_executor executor, account& account, store::state_store& store,
                 manager_options options)
    : executor_(executor), account_(account), store_(store), options_(std::move(options)),
      pulse_(std::make_shared<pulse>(executor, tick())), places_(options_.slots),
      reconcile_wanted_(executor), place_wanted_(executor), boot_(sys::boot_id()) {
    account_.on_reconnect = [this] { reconcile_soon(); };
}

manager::~manager() {
    account_.on_reconnect = nullptr;
}

std::chrono::milliseconds manager::now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
}

std::chrono::milliseconds manager::awake() const {
    return pulse_->clock.now(now());
}

// How often idleness is looked at, which bounds what a stopped process can be mistaken by.
std::chrono::milliseconds manager::tick() const {
    return std::clamp<std::chrono::milliseconds>(
        options_.idle_stop / 10, std::chrono::milliseconds(20), std::chrono::milliseconds(5'000));
}

void manager::adopt(store::saved_state saved) {
    ledger_ = saved.ledger;
    clock_mark_ = saved.clock;
    account_.resume_clock(saved.clock);
    prices_ = std::move(saved.prices);
    for (core::sandbox_record& record : saved.records) {
        const std::shared_ptr<entry> each = entry_for(record.key);
        each->record = std::move(record);
        if (each->record.create_pending) {
            core::note_doubt(each->record); // it may have been sent
        }
        restore_holders(*each);
        each->unseen = true;
        each->used(awake());
        each->call_ended = now(); // not known: counted anew
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

bool manager::is_known(const core::sandbox_key& key, const std::string& sandbox_id,
                       std::uint64_t generation) const {
    const auto found = entries_.find(key);
    return found != entries_.end() && found->second->record.sandbox_id == sandbox_id &&
           found->second->record.generation == generation;
}

std::uint64_t manager::generation(const core::sandbox_key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? 0 : found->second->record.generation;
}

bool manager::is_of_account(const entry& each) const {
    return each.record.base_url == account_.base_url() &&
           each.record.fingerprint == account_.fingerprint();
}

bool manager::may_be_of_account(const entry& each) const {
    const core::sandbox_record& record = each.record;
    return account_.configured() && (!record.sandbox_id.empty() || record.create_pending) &&
           !is_of_account(each) && record.base_url == account_.base_url() &&
           compared_as_ != account_.fingerprint();
}

asio::awaitable<void> manager::compare() {
    // One that is under way may have asked with the key before.
    const std::uint64_t enough = comparisons_ + (comparing_ ? 2 : 1);
    reconcile_soon();
    while (compared_as_ != account_.fingerprint()) {
        if (comparisons_ >= enough && reconcile_trouble_) {
            throw rpc_error(*reconcile_trouble_);
        }
        co_await pulse_->activity.wait();
    }
}

void manager::check_account(const entry& each) const {
    account_.require_configured();
    const core::sandbox_record& record = each.record;
    if ((!record.sandbox_id.empty() || record.create_pending) && !is_of_account(each)) {
        rpc_error error(error_name::account_mismatch,
                        "the sandbox of " + describe(record.key) + " belongs to another account (" +
                            record.base_url + ", key fingerprint " + record.fingerprint + ")",
                        std::string(info(error_name::account_mismatch).hint) +
                            "; if that account is not used any more, `deepinfra-sandboxd terminate "
                            "--forget` gives the sandbox up");
        error.sandbox_id = record.sandbox_id;
        throw error;
    }
}

asio::awaitable<ensured> manager::ensure(core::sandbox_key key, wanted want,
                                         progress_callback on_progress,
                                         std::optional<sys::process_identity> holder) {
    if (holder) {
        hold(key, *holder);
        want.client = holder;
    }
    for (;;) {
        // Looked up each time: the entry of a one-session sandbox goes with it.
        const std::shared_ptr<entry> each = entry_for(key);
        if (may_be_of_account(*each)) {
            co_await compare();
            continue;
        }
        check_account(*each);
        if (!clear_the_way(each, want)) {
            co_await wait_for(each, each->current, on_progress, want.still_there,
                              &operation::enders);
            continue;
        }
        std::shared_ptr<operation> op = each->current;
        const bool is_new = !op && each->record.sandbox_id.empty() && !each->record.create_pending;
        if (is_new && want.only_existing) {
            throw rpc_error(error_name::sandbox_not_found,
                            "there is no sandbox for " + describe(key));
        }
        if (is_new) {
            each->record.idle_stop = want.idle_stop.value_or(std::chrono::seconds(0));
        } else if (want.idle_stop &&
                   std::exchange(each->record.idle_stop, *want.idle_stop) != *want.idle_stop) {
            save_soon();
        }
        if (!op && each->record.state == core::life_state::running) {
            each->used(awake());
            pulse_->activity.notify_all();
            co_return ensured{};
        }
        if (!op) {
            op = begin(each, operation_kind::bring_up, want);
        }
        co_await wait_for(each, op, on_progress, want.still_there, &operation::askers);
        if (op->kind != operation_kind::bring_up || op->abandoned) {
            continue;
        }
        // Whoever it was begun for would not have had one made.
        const bool begun_for_less = op->want.only_existing && !want.only_existing;
        if (op->error && begun_for_less && is_nothing_there(*op->error)) {
            continue;
        }
        if (op->error) {
            throw *op->error;
        }
        co_return op->outcome;
    }
}

asio::awaitable<lease> manager::acquire(core::sandbox_key key, wanted want, std::string exec_id,
                                        progress_callback on_progress) {
    for (;;) {
        const ensured how = co_await ensure(key, want, on_progress, std::nullopt);
        const std::shared_ptr<entry> each = entry_for(key);
        // Between the bring-up's end and here somebody may have begun to stop it: then once more.
        if (!each->current && each->record.state == core::life_state::running &&
            is_of_account(*each)) {
            co_return lease_of(each, how, std::move(exec_id), want.client.value_or(nobody));
        }
    }
}

asio::awaitable<lease> manager::hold_generation(core::sandbox_key key, std::uint64_t generation,
                                                wanted want, std::string exec_id,
                                                progress_callback on_progress) {
    for (;;) {
        const auto found = entries_.find(key);
        const std::shared_ptr<entry> each = found == entries_.end() ? nullptr : found->second;
        if (each) {
            if (may_be_of_account(*each)) {
                co_await compare();
                continue;
            }
            check_account(*each);
            if (const std::shared_ptr<operation> op = each->current) {
                co_await wait_for(each, op, on_progress, want.still_there, &operation::askers);
                continue;
            }
            if (!clear_the_way(each, want)) {
                continue;
            }
        }
        const core::life_state state = each ? each->record.state : core::life_state::absent;
        const std::uint64_t newest = each ? each->record.generation : 0;
        if (state == core::life_state::running && newest == generation) {
            co_return lease_of(each, {}, std::move(exec_id), want.client.value_or(nobody));
        }
        if (state == core::life_state::unknown) {
            // Nobody may ever come who would start it, and so look at it.
            reconcile_soon();
        }
        rpc_error error(
            error_name::generation_changed,
            "generation " + std::to_string(generation) + " of the sandbox of " + describe(key) +
                " does not run now, as far as is known (newest: " + std::to_string(newest) + ", " +
                std::string(core::to_string(state)) + "), and nothing was started");
        if (each && !each->record.sandbox_id.empty()) {
            error.sandbox_id = each->record.sandbox_id;
        }
        throw error;
    }
}

lease manager::lease_of(const std::shared_ptr<entry>& each, ensured how, std::string exec_id,
                        sys::process_identity client) {
    how.created = std::exchange(each->untouched, false);
    if (each->leases.empty()) {
        each->held_since = now();
    }
    return lease(each, how, std::move(exec_id), client, [held = each.get(), beat = pulse_] {
        // The lease has kept it alive until now.
        held->used(beat->clock.now(now()));
        held->call_ended = now();
        beat->activity.notify_all();
    });
}

asio::awaitable<std::optional<lease>> manager::hold_running(core::sandbox_key key,
                                                            std::string sandbox_id,
                                                            std::string exec_id,
                                                            core::owner_process client) {
    sys::process_identity asker = nobody;
    if (client.boot == boot_) {
        asker = {static_cast<pid_t>(client.pid), client.start_time};
    }
    bool asked = false;
    for (;;) {
        while (!reconciled_) {
            co_await pulse_->activity.wait();
        }
        const auto found = entries_.find(key);
        if (found == entries_.end() || found->second->record.sandbox_id != sandbox_id) {
            co_return std::nullopt;
        }
        const std::shared_ptr<entry> each = found->second;
        if (may_be_of_account(*each)) {
            if (!std::exchange(asked, true)) {
                reconcile_soon();
            }
            co_await pulse_->activity.wait();
            continue;
        }
        if (!is_of_account(*each)) {
            co_return std::nullopt;
        }
        if (const std::shared_ptr<operation> op = each->current) {
            co_await wait_for(each, op, nullptr, nullptr, &operation::askers);
            continue;
        }
        if (each->record.state != core::life_state::running) {
            co_return std::nullopt;
        }
        co_return lease_of(each, {}, std::move(exec_id), asker);
    }
}

core::owner_process manager::remembered(const std::optional<sys::process_identity>& client) const {
    return client ? core::owner_process{client->pid, client->start_time, boot_}
                  : core::owner_process{};
}

void manager::distrust(const core::sandbox_key& key) {
    const std::shared_ptr<entry> each = entry_for(key);
    if (!each->current && each->record.state == core::life_state::running) {
        each->record.state = core::life_state::unknown;
    }
}

asio::awaitable<void> manager::wait_for(std::shared_ptr<entry> each, std::shared_ptr<operation> op,
                                        progress_callback on_progress,
                                        std::function<bool()> still_there,
                                        int operation::*counted_as) {
    // However the wait ends, who waits no more is not counted; the operation looks at it.
    struct counted {
        std::shared_ptr<entry> of;
        std::shared_ptr<operation> op;
        int operation::*as;
        counted(std::shared_ptr<entry> waiting, std::shared_ptr<operation> what, int operation::*by)
            : of(std::move(waiting)), op(std::move(what)), as(by) {
            ++((*op).*as);
            of->changed.notify_all();
        }
        counted(const counted&) = delete;
        counted& operator=(const counted&) = delete;
        ~counted() {
            --((*op).*as);
            if (!op->done) {
                of->changed.notify_all();
            }
        }
    };
    const counted here(each, op, counted_as);
    const std::chrono::milliseconds since = now();
    std::string said;
    std::chrono::milliseconds said_at = since;
    while (!op->done) {
        if (on_progress && (op->doing != said || now() - said_at >= progress_period)) {
            said = op->doing;
            said_at = now();
            on_progress({each->record.state, said, said_at - since});
        }
        if (still_there && !still_there()) {
            throw rpc_error(error_name::cancelled, "nobody waits for it any more");
        }
        co_await each->changed.wait();
    }
}

asio::awaitable<std::string> manager::shut_down(std::shared_ptr<entry> each, operation_kind kind,
                                                bool force) {
    for (;;) {
        if (may_be_of_account(*each)) {
            co_await compare();
        }
        check_account(*each);
        std::shared_ptr<operation> op = each->current;
        const core::life_state state = each->record.state;
        if (!op && (state == core::life_state::absent ||
                    (kind == operation_kind::stop && state == core::life_state::stopped))) {
            co_return each->record.sandbox_id;
        }
        if (!op && !each->leases.empty() && !force) {
            rpc_error error(error_name::sandbox_busy,
                            std::to_string(each->leases.size()) +
                                (each->leases.size() == 1 ? " command is" : " commands are") +
                                " running in the sandbox of " + describe(each->record.key) + " (" +
                                each->leases.front().exec_id + ")");
            error.sandbox_id = each->record.sandbox_id;
            throw error;
        }
        if (!op) {
            each->forced += each->leases.empty() ? 0 : 1;
            op = begin(each, kind, {});
        }
        co_await wait_for(each, op, nullptr, nullptr, &operation::enders);
        if (op->kind == kind && !op->abandoned) {
            if (op->error) {
                throw *op->error;
            }
            co_return op->sandbox_id;
        }
    }
}

asio::awaitable<void> manager::stop(selector which, bool force) {
    co_await shut_down(find(which), operation_kind::stop, force);
}

asio::awaitable<std::string> manager::terminate(selector which, bool force) {
    co_return co_await shut_down(find(which), operation_kind::terminate, force);
}

asio::awaitable<std::string> manager::forget(selector which) {
    account_.require_configured();
    const std::shared_ptr<entry> each = find(which);
    core::sandbox_record& record = each->record;
    if (may_be_of_account(*each)) {
        co_await compare();
    }
    if (is_of_account(*each) || (record.sandbox_id.empty() && !record.create_pending)) {
        rpc_error error(error_name::invalid_params,
                        "the sandbox of " + describe(record.key) +
                            " belongs to the account that this daemon works for, so it is looked "
                            "after; nothing was done",
                        "deepinfra-sandboxd terminate ends it");
        error.sandbox_id = record.sandbox_id;
        throw error;
    }
    const std::string id = record.sandbox_id;
    spdlog::warn("{}: {}, of another account ({}, key fingerprint {}), is forgotten as asked",
                 describe(record.key), id.empty() ? "a creation in doubt" : "sandbox " + id,
                 record.base_url, record.fingerprint);
    core::sandbox_record fresh;
    fresh.key = record.key;
    fresh.generation = record.generation; // no number is given twice
    record = std::move(fresh);
    co_await save();
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
    let_go(*each, holder);
    result.holders = count_others(*each, holder);
    if (!each->record.persistent && each->record.owner.pid == holder.pid &&
        each->record.owner.start_time == holder.start_time) {
        each->record.owner_gone = true;
        mode = release_mode::terminate; // its session is over
    }
    const core::life_state state = each->record.state;
    const bool nothing_to_do =
        state == core::life_state::absent ||
        (mode == release_mode::stop && state == core::life_state::stopped && !each->current);
    if (mode == release_mode::keep || nothing_to_do) {
        result.action = mode == release_mode::keep ? release_action::kept : release_action::none;
        co_return result;
    }
    if (result.holders != 0 || (!each->leases.empty() && !each->record.owner_gone)) {
        result.action = release_action::kept;
        result.message =
            result.holders != 0
                ? std::to_string(result.holders) + " other client(s) still use this sandbox"
                : std::to_string(each->leases.size()) + " command(s) still run in it";
        co_return result;
    }
    co_await shut_down(
        each, mode == release_mode::stop ? operation_kind::stop : operation_kind::terminate,
        each->record.owner_gone);
    result.action =
        mode == release_mode::stop ? release_action::stopped : release_action::terminated;
    co_return result;
}

bool manager::is_in_use(const entry& each) const {
    return each.current || !each.leases.empty();
}

bool manager::is_idle(const entry& each) const {
    return each.record.state == core::life_state::running && !is_in_use(each);
}

} // namespace sandboxd::sandbox
