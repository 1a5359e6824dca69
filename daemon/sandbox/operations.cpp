// The thin shells that carry out what the life-cycle machines decide (core/bring_up_fsm,
// core/shut_down_fsm).
#include "core/bring_up_fsm.hpp"
#include "core/shut_down_fsm.hpp"

#include "base/id.hpp"
#include "core/listing_review.hpp"
#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

namespace {

asio::awaitable<void> pause(const asio::any_io_executor& executor,
                            std::chrono::milliseconds delay) {
    asio::steady_timer timer(executor, delay);
    co_await timer.async_wait(asio::use_awaitable);
}

} // namespace

std::shared_ptr<operation> manager::begin(const std::shared_ptr<entry>& each, operation_kind kind,
                                          const wanted& want) {
    auto op = std::make_shared<operation>();
    op->kind = kind;
    op->want = want;
    op->want.still_there = nullptr; // the operation goes on for whoever is left
    op->since = now();
    op->account = account_.fingerprint();
    each->current = op;
    each->absent_since.reset();
    // Detached: it belongs to the entry, not to the one who asked. It settles whatever happens.
    asio::co_spawn(
        executor_,
        [this, each, op]() -> asio::awaitable<void> {
            co_await asio::post(executor_, asio::use_awaitable); // never over before it has begun
            try {
                if (op->kind == operation_kind::bring_up) {
                    co_await run_bring_up(each, op);
                } else {
                    co_await run_shut_down(each, op);
                }
            } catch (const std::exception& problem) {
                op->error.emplace(error_name::internal_error, problem.what());
            }
            settle(each, op);
        },
        asio::detached);
    return op;
}

void manager::settle(const std::shared_ptr<entry>& each, const std::shared_ptr<operation>& op) {
    const std::string who = describe(each->record.key);
    if (op->error) {
        spdlog::warn("{}: {}", who, op->error->what());
    } else {
        spdlog::info("{}: {} after {} ms (sandbox {})", who, core::to_string(each->record.state),
                     (now() - op->since).count(),
                     each->record.sandbox_id.empty() ? "-" : each->record.sandbox_id);
    }
    op->done = true;
    places_.leave(op->ticket);
    each->current.reset();
    each->used(awake());
    each->call_ended = now();
    each->changed.notify_all();
    if (op->kind != operation_kind::bring_up && !core::is_active(each->record.state)) {
        places_.on_freed(now());
    }
    pulse_->activity.notify_all();
    const core::sandbox_record& record = each->record;
    const bool forgotten = record.state == core::life_state::absent && !record.create_pending &&
                           !record.persistent && !record.state_lost && record.doubts.empty();
    if (forgotten) {
        // A lasting key keeps its generation, which must never be given twice; a one-session key
        // never comes again.
        entries_.erase(record.key);
    }
}

asio::awaitable<void> manager::save() {
    count_all();
    const std::optional<std::int64_t> at = usable_time();
    if (at) {
        clock_mark_ = account_.clock_mark();
    }
    std::vector<core::sandbox_record> records;
    for (const auto& [key, each] : entries_) {
        if (at) {
            core::age_doubts(each->record, *at);
        }
        if (each->record.generation != 0 || !each->record.sandbox_id.empty() ||
            each->record.create_pending || !each->record.doubts.empty()) {
            records.push_back(record_to_keep(*each));
        }
    }
    store::saved_state state{std::move(records), ledger_, prices_, clock_mark_};
    try {
        co_await store_.save(std::move(state));
    } catch (const std::runtime_error&) {
        pulse_->activity.notify_all(); // see keep_saved
        throw;
    }
}

// What an operation has learnt says nothing about another account, nor may it make anything there.
bool manager::has_changed_account(const operation& op) const {
    return op.account != account_.fingerprint();
}

// For what is true whether it is on disk or not; health tells of the trouble, and the next change
// writes everything.
asio::awaitable<void> manager::save_or_complain() {
    try {
        co_await save();
    } catch (const std::exception& problem) {
        spdlog::error("the state could not be written: {}", problem.what());
    }
}

// Nothing else may change for hours, and until the state is written nothing is made.
asio::awaitable<void> manager::keep_saved() {
    core::backoff retry(std::chrono::seconds(1), std::chrono::seconds(30));
    for (;;) {
        if (store_.trouble().empty()) {
            retry.reset();
            co_await pulse_->activity.wait();
            continue;
        }
        co_await pause(executor_, retry.next());
        co_await save_or_complain();
    }
}

asio::awaitable<void> manager::run_bring_up(std::shared_ptr<entry> each,
                                            std::shared_ptr<operation> op) {
    using action = core::bring_up_fsm::action;
    core::sandbox_record& record = each->record;
    if (record.sandbox_id.empty() && !record.create_pending) {
        record.persistent = op->want.persistent;
        adopt_owner(record, op->want);
        record.plan = op->want.plan.empty() ? options_.plan : op->want.plan;
        record.base_url = account_.base_url();
        record.fingerprint = account_.fingerprint();
    } else if (record.create_pending && !record.persistent && !owner_lives(record)) {
        // What was meant for a session that is over, and holds nothing yet, is for whoever asks.
        record.persistent = op->want.persistent;
        adopt_owner(record, op->want);
    }
    const auto look = [&record](cloud::client& on) { return on.get(record.sandbox_id); };
    const auto start = [&record](cloud::client& on) { return on.start(record.sandbox_id); };
    const auto create = [&record, this](cloud::client& on) {
        return on.create(cloud::create_request{
            record.plan, core::tags_for(record, options_.instance), record.timeout});
    };
    core::bring_up_limits limits;
    if (op->want.only_existing) limits.creates = 0;
    core::bring_up_fsm machine(record, random_hex(8), options_.instance, limits);
    core::bring_up_fsm::step step = machine.begin(now());
    for (;;) {
        if (machine.place_taken() && op->ticket != 0) {
            places_.on_taken(op->ticket);
            op->ticket = 0;
            pulse_->activity.notify_all();
        }
        if (has_changed_account(*op) && step.what != action::done && step.what != action::fail) {
            op->abandoned = true;
            step = machine.on_account_changed(step);
        }
        if (step.what != action::queue) { // where there is a place, nobody waits for one
            op->doing = machine.doing();
            each->changed.notify_all();
        }
        switch (step.what) {
        case action::queue: {
            std::optional<rpc_error> none =
                co_await wait_for_place(each, op, machine.place_refused());
            step = none ? machine.on_no_place(now(), std::move(*none)) : machine.on_place(now());
            break;
        }
        case action::save: {
            note_timeout(record);
            std::string trouble;
            try {
                co_await save();
            } catch (const std::exception& problem) {
                trouble = problem.what();
            }
            step =
                trouble.empty() ? machine.on_saved(now()) : machine.on_save_failed(now(), trouble);
            break;
        }
        case action::get: {
            const auto got = co_await account_.ask(look);
            each->unseen = each->unseen && !got.has_value();
            step = machine.on_get(now(), got);
            break;
        }
        case action::list: {
            const auto listed = co_await list_all();
            step = machine.on_list(now(), listed);
            break;
        }
        case action::create: {
            const auto created = co_await account_.ask(create, account::purpose::a_machine);
            step = machine.on_create(now(), created);
            break;
        }
        case action::start: {
            const auto started = co_await account_.ask(start, account::purpose::a_machine);
            step = machine.on_start(now(), started);
            break;
        }
        case action::remove: {
            const auto removed = co_await remove_remotely(record.sandbox_id);
            step = machine.on_remove(now(), removed);
            break;
        }
        case action::wait: {
            const bool wanted =
                co_await pause_while_wanted(each, op, step.delay, machine.may_be_abandoned());
            op->abandoned = !wanted;
            step = wanted ? machine.on_waited(now()) : machine.on_abandoned();
            break;
        }
        case action::done:
            op->outcome = {machine.created(), machine.resumed(), machine.state_lost()};
            each->untouched = each->untouched || machine.created();
            if (std::exchange(record.state_lost, false)) {
                co_await save_or_complain(); // whoever waits for this is being told
            }
            co_return;
        case action::fail: {
            op->error = step.error;
            if (record.create_pending) {
                reconcile_soon(); // it may turn up later, and nobody may ever ask for
                                  // the key again
            }
            co_await save_or_complain();
            co_return;
        }
        }
    }
}

// False: nobody waits for what it brings any more, and somebody for its end, or nobody at all and
// it `may_be_abandoned`.
asio::awaitable<bool> manager::pause_while_wanted(std::shared_ptr<entry> each,
                                                  std::shared_ptr<operation> op,
                                                  std::chrono::milliseconds delay,
                                                  bool may_be_abandoned) {
    using namespace asio::experimental::awaitable_operators;
    asio::steady_timer timer(executor_);
    const std::chrono::milliseconds until = now() + delay;
    for (;;) {
        if (op->askers == 0 && (op->enders > 0 || may_be_abandoned)) {
            co_return false;
        }
        const std::chrono::milliseconds left = until - now();
        if (left <= std::chrono::milliseconds(0)) {
            co_return true;
        }
        timer.expires_after(left);
        co_await (timer.async_wait(asio::use_awaitable) || each->changed.wait());
    }
}

asio::awaitable<void> manager::run_shut_down(std::shared_ptr<entry> each,
                                             std::shared_ptr<operation> op) {
    using action = core::shut_down_fsm::action;
    using goal = core::shut_down_fsm::goal;
    core::sandbox_record& record = each->record;
    const bool stopping = op->kind == operation_kind::stop;
    const auto look = [&record](cloud::client& on) { return on.get(record.sandbox_id); };
    const auto stop = [&record](cloud::client& on) { return on.stop(record.sandbox_id); };
    op->doing = stopping ? "stopping the sandbox" : "deleting the sandbox";
    core::shut_down_fsm machine(record, stopping ? goal::stopped : goal::deleted,
                                options_.instance);
    core::shut_down_fsm::step step = machine.begin(now());
    for (;;) {
        if (!record.sandbox_id.empty()) {
            op->sandbox_id = record.sandbox_id;
        }
        if (has_changed_account(*op) && step.what != action::done && step.what != action::fail) {
            op->abandoned = true;
            step = machine.on_account_changed();
        }
        switch (step.what) {
        case action::get: {
            const auto got = co_await account_.ask(look);
            each->unseen = each->unseen && !got.has_value();
            step = machine.on_get(now(), got);
            break;
        }
        case action::list: {
            const auto listed = co_await list_all();
            step = machine.on_list(now(), listed);
            break;
        }
        case action::stop: {
            const auto stopped = co_await account_.ask(stop);
            step = machine.on_stop(now(), stopped);
            break;
        }
        case action::remove: {
            const auto removed = co_await remove_remotely(record.sandbox_id);
            step = machine.on_remove(now(), removed);
            break;
        }
        case action::wait: {
            co_await pause(executor_, step.delay);
            step = machine.on_waited(now());
            break;
        }
        case action::fail:
            op->error = step.error;
            [[fallthrough]];
        case action::done:
            if (op->idle && record.state == core::life_state::stopped) {
                // Else the platform would have stopped it, so long after its last call (D).
                core::begin_saving(record.usage, account_.cloud_now(),
                                   server_timeout(record) - idle_stop(record));
            }
            if (record.state == core::life_state::absent) {
                // Told to whoever comes next, unless it was meant to go.
                record.state_lost =
                    !op->sandbox_id.empty() && (stopping || (op->idle && !record.owner_gone));
                if (!stopping) {
                    core::note_doubt(record); // what shows again all the same is deleted again
                }
            }
            co_await save_or_complain();
            co_return;
        }
    }
}

} // namespace sandboxd::sandbox
