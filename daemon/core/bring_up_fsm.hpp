// From whatever is known about a key's sandbox to a running one: look it up, create it, start it,
// wait for it.
//
// The machine is told what a request brought and answers what to do next (`step`). It edits the
// record it was given, which the caller owns and keeps alive; the caller writes the record to disk
// whenever told `save` and goes on only when that is done. Nothing here sends, sleeps or reads a
// clock: `now` is any clock that only goes forward.
//
// Before it asks for a machine (a create, a start) it asks for a place among the active sandboxes:
// told `queue`, the caller waits for one and says on_place() or on_no_place(). A 429 to that
// request takes the place away again (`place_refused`).
//
// Invariants: no create is sent before its intent is on disk; a create whose outcome is not known
// is looked up by its tag and never simply repeated; a sandbox that may hold somebody's files is
// never deleted here; only a 404 that a successful listing confirms makes a sandbox gone.
#pragma once

#include "base/error.hpp"
#include "cloud/failure.hpp"
#include "cloud/model.hpp"
#include "core/backoff.hpp"
#include "core/listing_review.hpp"
#include "core/sandbox_record.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::core {

struct bring_up_limits {
    milliseconds boot{120'000};   // in creating, starting or stopping, before a boot counts as hung
    milliseconds trouble{45'000}; // of failures in a row that may pass by themselves
    milliseconds look_up_gap = core::look_up_gap;
    // Sandboxes made in one bring-up, the first included; 0: one that is gone stays gone.
    int creates = 2;
};

class bring_up_fsm {
public:
    enum class action { queue, save, get, list, create, start, remove, wait, done, fail };
    struct step {
        action what = action::done;
        milliseconds delay{0};          // wait
        std::optional<rpc_error> error; // fail
    };

    // `seed`: unpredictable; new creation ids are made from it. `instance`: of this daemon, proves
    // ownership of what a listing shows.
    bring_up_fsm(sandbox_record& record, std::string seed, std::string instance,
                 bring_up_limits limits = {});

    step begin(milliseconds now);
    step on_place(milliseconds now);
    step on_no_place(milliseconds now, rpc_error why);
    step on_saved(milliseconds now);
    step on_save_failed(milliseconds now, std::string_view why);
    step on_get(milliseconds now, const cloud::result<cloud::sandbox_info>& got);
    step on_list(milliseconds now, const cloud::result<std::vector<cloud::sandbox_info>>& listed);
    step on_create(milliseconds now, const cloud::result<std::string>& created);
    step on_start(milliseconds now, const cloud::result<void>& started);
    step on_remove(milliseconds now, const cloud::result<void>& removed);
    step on_waited(milliseconds now);
    // Instead of on_waited: nobody wants the sandbox any more.
    step on_abandoned();
    // Instead of carrying `next` out: the daemon works for another account now, and what is known
    // here is of the one before.
    step on_account_changed(const step& next);
    // Told `wait`: whether what is waited for is not under way yet, so that leaving costs nothing.
    bool may_be_abandoned() const noexcept { return after_wait_ != action::get; }

    // Valid after `done`.
    bool created() const noexcept { return created_; } // the sandbox is a new one
    bool resumed() const noexcept { return resumed_; } // it was stopped and has been started
    bool state_lost() const noexcept {
        return state_lost_;
    } // the one known before is gone with its files

    // Told `queue`: the platform's answer that took the place away; nothing: there was none yet.
    const std::optional<cloud::failure>& place_refused() const noexcept { return refused_; }
    // Whether the request just answered was granted, so that the place is a sandbox's now.
    bool place_taken() const noexcept { return taken_; }

    // What is being waited for, for people: "starting the sandbox".
    std::string_view doing() const noexcept { return doing_; }

private:
    enum class listing { by_tag, verify_gone };

    enum class machine { a_new_one, another_attempt, started };

    step ask_for_place(machine what);
    step write_intent();
    step place_lost(const cloud::failure& failure, machine what);
    step save_then(action next, bool critical);
    step wait_then(action next, milliseconds delay);
    step act(action what) const { return {what, milliseconds{0}, std::nullopt}; }
    step fail(rpc_error error) const;
    step trouble(milliseconds now, const cloud::failure& failure, action again);
    step new_creation();
    step seen(milliseconds now, const cloud::sandbox_info& info);
    step booting(milliseconds now, life_state state);
    step boot_failed(milliseconds now, std::string_view how);
    step running();
    step gone();
    step contradicted(milliseconds now);
    step look_up(listing purpose);
    step on_tag_listed(milliseconds now, const std::vector<cloud::sandbox_info>& all);
    void settle_doubt();
    void forget_intent() noexcept;
    void all_well() noexcept;

    sandbox_record& record_;
    std::string seed_;
    std::string instance_;
    bring_up_limits limits_;

    machine wanted_machine_ = machine::a_new_one;
    bool has_place_ = false;
    bool taken_ = false;
    std::optional<cloud::failure> refused_;
    action after_save_ = action::done;
    bool save_is_critical_ = false;
    action after_wait_ = action::get;
    listing listing_ = listing::by_tag;
    int absences_ = 0; // listings in a row without the tag
    int creates_ = 0;
    int restarts_ = 0;   // starts repeated after a failed boot
    bool fresh_ = false; // nobody has used this sandbox yet: it may be deleted
    bool created_ = false;
    bool resumed_ = false;
    bool state_lost_ = false;
    bool disowned_ =
        false; // the listing under way is there because a start or delete was answered with 404
    std::optional<milliseconds> boot_since_;
    std::optional<milliseconds>
        start_since_; // first told to start; again and again without effect ends with limits.boot
    std::optional<milliseconds> contradicted_since_;
    std::optional<milliseconds> trouble_since_;
    std::optional<cloud::failure> doubt_; // what left the create's outcome open
    backoff poll_{milliseconds(100), milliseconds(2'000), 1.5};
    backoff retry_{milliseconds(500), milliseconds(10'000)};
    std::string_view doing_ = "looking the sandbox up";
};

} // namespace sandboxd::core
