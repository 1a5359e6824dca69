#include "core/slot_queue.hpp"

#include <algorithm>

namespace sandboxd::core {
namespace {

void sooner(std::optional<milliseconds>& at, milliseconds candidate) {
    at = at ? std::min(*at, candidate) : candidate;
}

// Known to be idle before what may be at work unseen; then the one that was used longest ago.
bool goes_first(const slot_user& a, const slot_user& b) {
    const bool a_known = a.work != background::unknown;
    const bool b_known = b.work != background::unknown;
    return a_known != b_known ? a_known : a.idle_for > b.idle_for;
}

} // namespace

slot_queue::ticket slot_queue::enter(sandbox_key key, milliseconds now) {
    waiters_[++last_] = {std::move(key), now, false};
    return last_;
}

void slot_queue::on_refused(ticket which, milliseconds now, const cloud::failure& why,
                            double jitter) {
    const auto found = waiters_.find(which);
    if (found != waiters_.end()) {
        found->second.granted = false;
    }
    refused_ = why;
    retry_at_ = now + std::max(jittered(poll_.next(), jitter),
                               not_before(why.retry_after.value_or(milliseconds(0)), jitter));
}

void slot_queue::on_taken(ticket which) {
    leave(which);
    refused_.reset();
    retry_at_.reset();
    poll_.reset();
}

void slot_queue::on_freed(milliseconds now) {
    if (retry_at_) {
        retry_at_ = std::min(*retry_at_, now);
    }
}

// The place of one that was granted is taken from that moment on, seen as a sandbox or not.
bool slot_queue::holds_place(const waiter& each, const std::vector<slot_user>& users) const {
    return each.granted && std::none_of(users.begin(), users.end(), [&](const slot_user& user) {
               return user.key == each.key;
           });
}

// What a key waits for it does not have: a creation of its own that is in doubt, or a boot that
// hangs, must not keep it waiting for itself.
bool slot_queue::is_waiting(const sandbox_key& key) const {
    return std::any_of(waiters_.begin(), waiters_.end(), [&](const auto& each) {
        return !each.second.granted && each.second.key == key;
    });
}

slot_queue::decision slot_queue::decide(milliseconds now, std::vector<slot_user> users) {
    std::erase_if(users, [this](const slot_user& user) { return is_waiting(user.key); });
    decision result;
    const auto granted = static_cast<std::size_t>(std::count_if(
        waiters_.begin(), waiters_.end(), [](const auto& each) { return each.second.granted; }));
    const auto on_their_way = static_cast<std::size_t>(
        std::count_if(waiters_.begin(), waiters_.end(),
                      [&](const auto& each) { return holds_place(each.second, users); }));
    const std::size_t used = users.size() + on_their_way;
    const auto most = static_cast<std::size_t>(limits_.max_active);
    std::size_t free = used < most ? most - used : 0;
    const bool refused = retry_at_.has_value();
    if (refused) {
        const bool may_try = granted == 0 && now >= *retry_at_;
        free = may_try ? std::min<std::size_t>(free, 1) : 0;
    }
    std::size_t unserved = 0;
    for (auto each = waiters_.begin(); each != waiters_.end();) {
        auto& [id, who] = *each;
        if (who.granted) {
            ++each;
            continue;
        }
        if (free > 0) {
            --free;
            who.granted = true;
            result.granted.push_back(id);
            ++each;
            continue;
        }
        if (now - who.since >= limits_.timeout) {
            result.timed_out.push_back(id);
            each = waiters_.erase(each);
            continue;
        }
        sooner(result.look_again_in, limits_.timeout - (now - who.since));
        ++unserved;
        ++each;
    }
    if (unserved == 0) {
        return result;
    }
    if (refused && now < *retry_at_) {
        sooner(result.look_again_in, *retry_at_ - now);
    }
    if (refused && used < most && refused_->kind != cloud::failure_kind::cap_reached) {
        return result; // it is not for want of a place
    }
    // Others' places are not known, so a refusal asks for one of ours to go, not for all.
    make_room(result, users, refused ? 1 : unserved);
    return result;
}

void slot_queue::make_room(decision& result, const std::vector<slot_user>& users,
                           std::size_t wanted) const {
    const auto leaving = static_cast<std::size_t>(std::count_if(
        users.begin(), users.end(), [](const slot_user& user) { return user.leaving; }));
    if (leaving >= wanted) {
        return; // its end wakes the caller
    }
    wanted -= leaving;
    std::vector<slot_user> idle;
    for (const slot_user& user : users) {
        if (user.leaving || !user.evictable || user.work == background::running ||
            user.work == background::failed) {
            continue;
        }
        if (user.idle_for < limits_.evict_min_idle) {
            sooner(result.look_again_in, limits_.evict_min_idle - user.idle_for);
            continue;
        }
        idle.push_back(user);
    }
    std::stable_sort(idle.begin(), idle.end(), goes_first);
    for (const slot_user& user : idle) {
        if (wanted == 0) {
            break;
        }
        --wanted;
        if (user.asking) {
            continue; // its answer wakes the caller
        }
        (user.work == background::not_asked ? result.ask : result.evict).push_back(user.key);
    }
}

std::size_t slot_queue::waiting() const noexcept {
    return static_cast<std::size_t>(std::count_if(
        waiters_.begin(), waiters_.end(), [](const auto& each) { return !each.second.granted; }));
}

std::size_t slot_queue::place(ticket which) const noexcept {
    const auto found = waiters_.find(which);
    if (found == waiters_.end() || found->second.granted) {
        return 0;
    }
    return 1 + static_cast<std::size_t>(std::count_if(
                   waiters_.begin(), found, [](const auto& each) { return !each.second.granted; }));
}

} // namespace sandboxd::core
