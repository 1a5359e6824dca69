#include "core/bring_up_fsm.hpp"

#include "core/cloud_error.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {
namespace {

using kind = cloud::failure_kind;

} // namespace

bring_up_fsm::bring_up_fsm(sandbox_record& record, std::string seed, std::string instance,
                           bring_up_limits limits)
    : record_(record), seed_(std::move(seed)), instance_(std::move(instance)), limits_(limits) {}

bring_up_fsm::step bring_up_fsm::begin(milliseconds) {
    state_lost_ = record_.state_lost;
    if (record_.create_pending) {
        note_doubt(record_);
        return look_up(listing::by_tag);
    }
    if (record_.sandbox_id.empty()) {
        return new_creation();
    }
    if (record_.state == life_state::running) {
        return act(action::done);
    }
    fresh_ = record_.untried;
    return act(action::get);
}

bring_up_fsm::step bring_up_fsm::look_up(listing purpose) {
    listing_ = purpose;
    if (purpose == listing::by_tag) {
        absences_ = 0;
        doing_ = "looking for the sandbox of a create whose answer was lost";
    }
    return act(action::list);
}

bring_up_fsm::step
bring_up_fsm::on_list(milliseconds now,
                      const cloud::result<std::vector<cloud::sandbox_info>>& listed) {
    if (!listed.has_value()) {
        return trouble(now, listed.error(), action::list);
    }
    all_well();
    if (listing_ == listing::by_tag) {
        return on_tag_listed(now, *listed);
    }
    const auto found = std::find_if(listed->begin(), listed->end(), [&](const auto& each) {
        return each.id == record_.sandbox_id;
    });
    if (found == listed->end()) {
        return gone();
    }
    return std::exchange(disowned_, false) ? contradicted(now) : seen(now, *found);
}

// A start or delete was answered with 404, yet the sandbox is listed: what is true shows later, if
// ever.
bring_up_fsm::step bring_up_fsm::contradicted(milliseconds now) {
    if (!contradicted_since_) {
        contradicted_since_ = now;
    }
    if (now - *contradicted_since_ >= limits_.trouble) {
        return fail(
            {error_name::cloud_error, "while " + std::string(doing_) +
                                          ", the platform did not find it, although it lists it"});
    }
    return wait_then(action::get, poll_.next());
}

bring_up_fsm::step bring_up_fsm::on_get(milliseconds now,
                                        const cloud::result<cloud::sandbox_info>& got) {
    if (got.has_value()) {
        all_well();
        return seen(now, *got);
    }
    if (got.error().kind == kind::not_found) {
        return look_up(listing::verify_gone);
    }
    return trouble(now, got.error(), action::get);
}

bring_up_fsm::step bring_up_fsm::seen(milliseconds now, const cloud::sandbox_info& info) {
    if (info.created_at != 0) {
        record_.created_at = info.created_at;
    }
    if (!info.plan.empty()) {
        record_.runs_on = info.plan;
    }
    const life_state state = life_state_of(info.state);
    switch (state) {
    case life_state::running:
        return running();
    case life_state::absent:
        return gone();
    case life_state::failed:
        return boot_failed(now, "the platform reports it as failed");
    case life_state::stopped:
        if (!record_.persistent) {
            doing_ =
                "deleting a stopped one-session sandbox"; // never resumed: it promised to forget
            return act(action::remove);
        }
        note_state(record_, life_state::stopped);
        if (!start_since_) {
            start_since_ = now;
        } else if (now - *start_since_ >= limits_.boot) {
            return boot_failed(now, "it was still 'stopped' " +
                                        std::to_string(limits_.boot.count() / 1000) +
                                        " s after it was first told to start");
        }
        doing_ = "starting the sandbox";
        return ask_for_place(machine::started);
    default:
        return booting(now, state);
    }
}

bring_up_fsm::step bring_up_fsm::booting(milliseconds now, life_state state) {
    if (!boot_since_) {
        boot_since_ = now;
    }
    if (now - *boot_since_ >= limits_.boot) {
        return boot_failed(now, "it was still '" + std::string(to_string(state)) + "' after " +
                                    std::to_string(limits_.boot.count() / 1000) + " s");
    }
    if (state != life_state::unknown) {
        note_state(record_, state);
    }
    if (state == life_state::stopping) {
        doing_ = "waiting for the sandbox to stop, so that it can be started";
    } else if (state == life_state::starting) {
        doing_ = "waiting for the sandbox to start";
        resumed_ = resumed_ || !fresh_;
    }
    return wait_then(action::get, poll_.next());
}

bring_up_fsm::step bring_up_fsm::boot_failed(milliseconds, std::string_view how) {
    boot_since_.reset();
    start_since_.reset();
    if (fresh_) {
        doing_ = "deleting a sandbox that did not boot";
        return act(action::remove);
    }
    // It may hold somebody's files: starting it once more is harmless, deleting it would not be.
    if (restarts_ == 0) {
        ++restarts_;
        poll_.reset();
        doing_ = "starting the sandbox once more";
        return ask_for_place(machine::started);
    }
    record_.state = life_state::failed;
    rpc_error error(error_name::boot_failed, "the sandbox did not start: " + std::string(how),
                    "Its files are kept. Try again later; `deepinfra-sandboxd terminate` deletes "
                    "it and lets the next "
                    "command make a new one.");
    error.sandbox_id = record_.sandbox_id;
    return fail(std::move(error));
}

bring_up_fsm::step bring_up_fsm::on_start(milliseconds now, const cloud::result<void>& started) {
    if (started.has_value()) {
        all_well();
        taken_ = true;
        refused_.reset();
        contradicted_since_.reset();
        if (!std::exchange(resumed_, true)) {
            poll_.reset(); // not for each of a row of starts without effect
        }
        record_.state = life_state::starting;
        doing_ = "waiting for the sandbox to start";
        boot_since_ = now;
        return wait_then(action::get, poll_.next());
    }
    const cloud::failure& failure = started.error();
    if (failure.kind == kind::not_found) {
        disowned_ = true;
        return look_up(listing::verify_gone);
    }
    if (failure.kind == kind::conflict) {
        // Its state has changed meanwhile: whatever it is now decides.
        if (!boot_since_) {
            boot_since_ = now;
        }
        if (now - *boot_since_ >= limits_.boot) {
            return boot_failed(now, "starting it was refused all the time: " + failure.message);
        }
        return wait_then(action::get, poll_.next());
    }
    if (!failure.withheld &&
        (failure.kind == kind::cap_reached || failure.kind == kind::rate_limited)) {
        start_since_.reset(); // it is not the platform's fault that it still stands
        return place_lost(failure, machine::started);
    }
    if (failure.effect_unknown() && failure.kind != kind::no_capacity) {
        return trouble(now, failure, action::get); // its state tells whether the start took effect
    }
    return trouble(now, failure, action::start);
}

bring_up_fsm::step bring_up_fsm::on_remove(milliseconds now, const cloud::result<void>& removed) {
    if (removed.has_value()) {
        all_well();
        contradicted_since_.reset();
        return gone();
    }
    if (removed.error().kind == kind::not_found) {
        disowned_ = true;
        return look_up(listing::verify_gone);
    }
    return trouble(now, removed.error(), action::remove);
}

bring_up_fsm::step bring_up_fsm::running() {
    // From `unknown` it is taken for the same boot: only a state that was seen not to be running
    // proves another one.
    if (record_.state != life_state::running && record_.state != life_state::unknown) {
        ++record_.generation;
    }
    note_state(record_, life_state::running);
    return save_then(action::done, false);
}

bring_up_fsm::step bring_up_fsm::gone() {
    // One that was made just now held nothing.
    state_lost_ = state_lost_ || !fresh_;
    record_.state_lost = record_.state_lost || state_lost_;
    return new_creation();
}

bring_up_fsm::step bring_up_fsm::on_waited(milliseconds) {
    return act(after_wait_);
}

bring_up_fsm::step bring_up_fsm::on_abandoned() {
    if (after_wait_ == action::create) {
        forget_intent();
    }
    return fail({error_name::cancelled, "nobody waits for the sandbox any more"});
}

bring_up_fsm::step bring_up_fsm::on_account_changed(const step& next) {
    const bool about_to_create = next.what == action::create ||
                                 (next.what == action::save && after_save_ == action::create) ||
                                 (next.what == action::wait && after_wait_ == action::create);
    if (about_to_create) {
        forget_intent();
    }
    return fail({error_name::account_mismatch,
                 "while " + std::string(doing_) + ", the daemon's API key was changed"});
}

// Of a request that certainly made nothing.
void bring_up_fsm::forget_intent() noexcept {
    record_.create_pending = false;
    record_.state = life_state::absent;
}

bring_up_fsm::step bring_up_fsm::save_then(action next, bool critical) {
    after_save_ = next;
    save_is_critical_ = critical;
    return act(action::save);
}

bring_up_fsm::step bring_up_fsm::wait_then(action next, milliseconds delay) {
    after_wait_ = next;
    return {action::wait, delay, std::nullopt};
}

bring_up_fsm::step bring_up_fsm::fail(rpc_error error) const {
    if (!record_.sandbox_id.empty()) {
        error.sandbox_id = record_.sandbox_id;
    }
    return {action::fail, milliseconds{0}, std::move(error)};
}

bring_up_fsm::step bring_up_fsm::trouble(milliseconds now, const cloud::failure& failure,
                                         action again) {
    if (!trouble_since_) {
        trouble_since_ = now;
    }
    const milliseconds delay =
        std::max(retry_.next(), failure.retry_after.value_or(milliseconds(0)));
    // Nobody sits out a Retry-After of an hour.
    if (!is_transient(failure) || now - *trouble_since_ >= limits_.trouble ||
        delay > limits_.boot) {
        if (again == action::create) {
            forget_intent(); // only what certainly made nothing leads here
        }
        const bool for_a_machine = again == action::create || again == action::start;
        return fail(for_a_machine ? machine_error_from(failure, doing_)
                                  : plain_error_from(failure, doing_));
    }
    return wait_then(again, delay);
}

void bring_up_fsm::all_well() noexcept {
    trouble_since_.reset();
    retry_.reset();
}

} // namespace sandboxd::core
