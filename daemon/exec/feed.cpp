#include "exec/feed.hpp"

#include "exec/session.hpp"

namespace sandboxd::exec {

std::optional<core::output_chunk> feed::take(std::size_t most) {
    std::optional<core::output_chunk> chunk = queue_.take(most);
    if (chunk && !queue_.full()) {
        room_.notify_all();
    }
    return chunk;
}

bool feed::acknowledge(std::uint64_t pos) {
    const bool closed = !queue_.empty() && !queue_.can_take();
    if (!queue_.acknowledge(pos)) {
        return false;
    }
    if (const std::shared_ptr<session> of = of_.lock()) {
        of->acknowledged(*this);
    }
    if (closed && queue_.can_take()) {
        ready();
    }
    return true;
}

bool feed::exit_due() const {
    const std::shared_ptr<session> of = of_.lock();
    return of && of->done() && over_ && queue_.empty();
}

void feed::told() {
    if (const std::shared_ptr<session> of = of_.lock()) {
        of->told(shared_from_this());
    }
}

void feed::detach() {
    to_.reset();
    if (const std::shared_ptr<session> of = of_.lock()) {
        of->detached(shared_from_this());
    }
}

void feed::ready() {
    if (const std::shared_ptr<subscriber> listener = to_.lock()) {
        listener->on_ready(shared_from_this());
    }
}

} // namespace sandboxd::exec
