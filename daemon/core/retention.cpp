#include "core/retention.hpp"

namespace sandboxd::core {

bool retention::on_listing(const sandbox_record& record, std::optional<std::int64_t> cloud,
                           milliseconds now, milliseconds limit) {
    const bool old = limit > milliseconds(0) && cloud && record.state == life_state::stopped &&
                     record.stopped_since != 0 &&
                     std::chrono::seconds(*cloud - record.stopped_since) >= limit;
    if (!old) {
        since_.reset();
        return false;
    }
    if (!since_ || sandbox_id_ != record.sandbox_id) {
        since_ = now;
        sandbox_id_ = record.sandbox_id;
        return false;
    }
    return now - *since_ >= gap;
}

} // namespace sandboxd::core
