// From whatever is known about a sandbox to a stopped or a deleted one.
//
// Where a create is in doubt, it is looked up by its tag first; two listings without it end the
// intent, and its doubt takes care of what turns up later all the same.
//
// Same way of working as bring_up_fsm: it is told what a request brought, answers what to do next
// and edits the record the caller owns. It gives up with an error only when trouble lasts; the
// record then says what was last seen.
#pragma once

#include "base/error.hpp"
#include "cloud/failure.hpp"
#include "cloud/model.hpp"
#include "core/backoff.hpp"
#include "core/listing_review.hpp"
#include "core/sandbox_record.hpp"

#include <optional>
#include <string>
#include <vector>

namespace sandboxd::core {

struct shut_down_limits {
    milliseconds settle{120'000}; // until the platform reports the wanted state
    milliseconds trouble{45'000}; // of failures in a row that may pass by themselves
};

class shut_down_fsm {
public:
    enum class goal { stopped, deleted };
    enum class action { get, list, stop, remove, wait, done, fail };
    struct step {
        action what = action::done;
        milliseconds delay{0};
        std::optional<rpc_error> error;
    };

    // `instance`: of this daemon, proves ownership of what a listing shows.
    shut_down_fsm(sandbox_record& record, goal wanted, std::string instance,
                  shut_down_limits limits = {});

    step begin(milliseconds now);
    step on_get(milliseconds now, const cloud::result<cloud::sandbox_info>& got);
    step on_list(milliseconds now, const cloud::result<std::vector<cloud::sandbox_info>>& listed);
    step on_stop(milliseconds now, const cloud::result<void>& stopped);
    step on_remove(milliseconds now, const cloud::result<void>& removed);
    step on_waited(milliseconds now);
    // Instead of carrying out what was told: the daemon works for another account now.
    step on_account_changed() const;

private:
    step act(action what) const { return {what, milliseconds{0}, std::nullopt}; }
    step on_tag_listed(const std::vector<cloud::sandbox_info>& all);
    step seen(milliseconds now, life_state state);
    step gone();
    step wait_then(action next, milliseconds delay);
    step trouble(milliseconds now, const cloud::failure& failure, action again);
    step fail(rpc_error error) const;
    std::string_view doing() const noexcept;

    sandbox_record& record_;
    goal goal_;
    std::string instance_;
    shut_down_limits limits_;
    int absences_ = 0; // listings in a row without the sandbox of an open intent
    milliseconds since_{0};
    std::optional<milliseconds> trouble_since_;
    action after_wait_ = action::get;
    backoff poll_{milliseconds(100), milliseconds(2'000), 1.5};
    backoff retry_{milliseconds(500), milliseconds(10'000)};
};

} // namespace sandboxd::core
