#include "core/listing_review.hpp"

#include <algorithm>

namespace sandboxd::core {
namespace {

// "<creation_id>.<attempt>" without the attempt.
std::string creation_of(const cloud::sandbox_info& info) {
    const auto found = info.tags.find(std::string(tag::creation));
    if (found == info.tags.end()) {
        return {};
    }
    return found->second.substr(0, found->second.rfind('.'));
}

enum class belonging { in_use, may_be_adopted, late, unknown };

belonging belonging_of(const cloud::sandbox_info& seen,
                       const std::vector<sandbox_record>& records) {
    const std::string creation = creation_of(seen);
    belonging found = belonging::unknown;
    for (const sandbox_record& record : records) {
        if (record.sandbox_id == seen.id) {
            return belonging::in_use;
        }
        if (creation.empty()) {
            continue;
        }
        if (record.create_pending && record.creation_id == creation) {
            return belonging::may_be_adopted;
        }
        const bool another_in_use = record.creation_id == creation && !record.sandbox_id.empty();
        const bool doubted =
            std::any_of(record.doubts.begin(), record.doubts.end(),
                        [&](const open_doubt& each) { return each.creation_id == creation; });
        if (another_in_use || doubted) {
            found = belonging::late;
        }
    }
    return found;
}

} // namespace

listing_review review_listing(const std::vector<cloud::sandbox_info>& listing,
                              const std::vector<sandbox_record>& records,
                              std::string_view instance) {
    listing_review review;
    for (const cloud::sandbox_info& seen : listing) {
        if (seen.state == cloud::sandbox_state::deleted) {
            continue;
        }
        const belonging whose = belonging_of(seen, records);
        // In use it is ours, also where its tags name an instance that was lost.
        if (whose != belonging::in_use && !is_made_by(seen, instance)) {
            review.others_active += is_active(life_state_of(seen.state)) ? 1 : 0;
            continue;
        }
        switch (whose) {
        case belonging::late:
            review.late.push_back(seen);
            break;
        case belonging::unknown:
            review.orphans.push_back(seen);
            break;
        default:
            break;
        }
    }
    return review;
}

void age_doubts(sandbox_record& record, std::int64_t now) {
    for (open_doubt& each : record.doubts) {
        if (each.since == 0 || each.since > now) {
            each.since = now;
        }
    }
    std::erase_if(record.doubts, [&](const open_doubt& each) {
        const bool of_the_intent = record.create_pending && each.creation_id == record.creation_id;
        return !of_the_intent &&
               now - each.since >=
                   std::chrono::duration_cast<std::chrono::seconds>(doubt_lasts).count();
    });
}

} // namespace sandboxd::core
