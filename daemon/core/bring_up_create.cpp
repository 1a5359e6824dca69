// The part of the bring-up machine that makes a new sandbox: a place, the intent on disk, the
// create, and what becomes of one whose answer was lost. See bring_up_fsm.hpp.
#include "core/bring_up_fsm.hpp"
#include "core/cloud_error.hpp"

#include <algorithm>
#include <utility>

namespace sandboxd::core {

using kind = cloud::failure_kind;

bring_up_fsm::step bring_up_fsm::new_creation() {
    if (limits_.creates == 0) {
        rpc_error error(error_name::sandbox_gone, "the sandbox was deleted, and its files with it");
        error.sandbox_id = std::exchange(record_.sandbox_id, {});
        record_.state = life_state::absent;
        return fail(std::move(error));
    }
    if (creates_ == limits_.creates) {
        return fail({error_name::boot_failed,
                     "the platform could not boot a sandbox, " + std::to_string(creates_) +
                         " times in a row; what it had made was deleted again"});
    }
    record_.create_pending = false;
    record_.sandbox_id.clear();
    record_.state = life_state::absent;
    record_.created_at = 0;
    record_.runs_on.clear();
    fresh_ = true;
    record_.untried = true;
    record_.first_boot = record_.generation + 1;
    boot_since_.reset();
    poll_.reset();
    doing_ = "creating the sandbox";
    return ask_for_place(machine::a_new_one);
}

bring_up_fsm::step bring_up_fsm::ask_for_place(machine what) {
    wanted_machine_ = what;
    return has_place_ ? on_place({}) : act(action::queue);
}

bring_up_fsm::step bring_up_fsm::on_place(milliseconds) {
    has_place_ = true;
    taken_ = false;
    if (wanted_machine_ == machine::started) {
        return act(action::start);
    }
    return write_intent();
}

bring_up_fsm::step bring_up_fsm::on_no_place(milliseconds, rpc_error why) {
    return fail(std::move(why)); // the record says what there is: nothing was asked for
}

bring_up_fsm::step bring_up_fsm::write_intent() {
    // A request that certainly made nothing is sent again under its own name.
    if (!refused_ || creates_ == 0) {
        ++creates_;
        if (wanted_machine_ == machine::another_attempt) {
            ++record_.attempt;
        } else {
            record_.creation_id = seed_ + "-" + std::to_string(creates_);
            record_.attempt = 1;
        }
    }
    refused_.reset();
    record_.create_pending = true;
    record_.state = life_state::creating;
    return save_then(action::create, true);
}

// Nothing was made or started, for sure: back into the queue, whose place in it is kept.
bring_up_fsm::step bring_up_fsm::place_lost(const cloud::failure& failure, machine what) {
    refused_ = failure;
    has_place_ = false;
    return ask_for_place(what);
}

bring_up_fsm::step bring_up_fsm::on_saved(milliseconds) {
    return act(after_save_);
}

bring_up_fsm::step bring_up_fsm::on_save_failed(milliseconds, std::string_view why) {
    if (!save_is_critical_) {
        return act(after_save_); // the intent is on disk: the tag finds the sandbox again
    }
    forget_intent();
    return fail(
        {error_name::internal_error,
         "the intent to create a sandbox could not be written down, so nothing was created: " +
             std::string(why),
         "Make the state directory writable and its disk not full, then try again."});
}

bring_up_fsm::step bring_up_fsm::on_create(milliseconds now,
                                           const cloud::result<std::string>& created) {
    if (created.has_value()) {
        all_well();
        taken_ = true;
        record_.sandbox_id = *created;
        record_.create_pending = false;
        created_ = true;
        settle_doubt();
        doing_ = "waiting for the new sandbox to boot";
        boot_since_ = now;
        return save_then(action::get, false);
    }
    const cloud::failure& failure = created.error();
    if (failure.effect_unknown()) {
        doubt_ = failure;
        note_doubt(record_);
        return look_up(listing::by_tag);
    }
    if (failure.kind == kind::unreachable || failure.withheld) {
        return trouble(
            now, failure,
            action::create); // certainly nothing was made: the same attempt may be sent again
    }
    forget_intent();
    if (failure.kind == kind::cap_reached || failure.kind == kind::rate_limited) {
        return place_lost(failure, wanted_machine_);
    }
    rpc_error error = machine_error_from(failure, doing_);
    if (failure.kind == kind::bad_request && !record_.plan.empty()) {
        error = {error_name::unknown_plan,
                 error.what() + std::string(" (plan '") + record_.plan + "')"};
    }
    return fail(std::move(error));
}

bring_up_fsm::step bring_up_fsm::on_tag_listed(milliseconds now,
                                               const std::vector<cloud::sandbox_info>& all) {
    // Any attempt of this creation id counts: an earlier one may have turned up late.
    if (const cloud::sandbox_info* const found = made_for(all, record_, instance_)) {
        record_.sandbox_id = found->id;
        record_.created_at = found->created_at;
        record_.create_pending = false;
        created_ = true;
        fresh_ = true;
        record_.untried = true;
        taken_ = true;
        settle_doubt();
        doing_ = "waiting for the new sandbox to boot";
        boot_since_ = now;
        return save_then(action::get, false);
    }
    if (++absences_ < 2) {
        return wait_then(action::list, limits_.look_up_gap);
    }
    if (doubt_ && doubt_->kind == kind::no_capacity) {
        forget_intent();
        return fail(machine_error_from(*doubt_, "creating the sandbox"));
    }
    if (limits_.creates == 0) {
        return fail({error_name::sandbox_not_found,
                     "the sandbox of a create whose answer was lost has not turned up"});
    }
    if (creates_ == limits_.creates) {
        // The intent stays open: should the sandbox turn up after all, the next bring-up finds it
        // by its tag.
        return fail({error_name::outcome_unknown,
                     "creating the sandbox was answered with an error " + std::to_string(creates_) +
                         " times and no sandbox has turned up; the intent stays open"});
    }
    fresh_ = true;
    doing_ = "creating the sandbox";
    return ask_for_place(machine::another_attempt);
}

// The one request that was ever sent for this creation has made the sandbox that was found.
void bring_up_fsm::settle_doubt() {
    if (record_.attempt == 1) {
        std::erase_if(record_.doubts, [&](const open_doubt& each) {
            return each.creation_id == record_.creation_id;
        });
    }
}

} // namespace sandboxd::core
