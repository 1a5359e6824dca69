#include "sync/head_start.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>

#include <exception>
#include <optional>
#include <utility>

namespace sandboxd::sync {
namespace asio = boost::asio;

struct head_start::state {
    sandbox_side there;
    std::optional<helper_error> error;
    bool over = false;
    asio::cancellation_signal hang_up;

    explicit state(sandbox_side where) : there(std::move(where)) {}

    static asio::awaitable<void> unpack(std::shared_ptr<state> self, json::object order) {
        // Also where it is destroyed without having come to its end: there is nothing to cancel.
        struct guard {
            state& of;
            explicit guard(state& what) : of(what) {}
            guard(const guard&) = delete;
            guard& operator=(const guard&) = delete;
            ~guard() { of.over = true; }
        };
        const guard ends(*self);
        self->error = co_await self->there.attempt("unpack", std::move(order));
    }
};

head_start::head_start(const asio::any_io_executor& executor, sandbox_side there,
                       json::object order)
    : state_(std::make_shared<state>(std::move(there))) {
    // The signal lives as long as who listens to it.
    auto forgotten = [self = state_](const std::exception_ptr&) {};
    asio::co_spawn(executor, state::unpack(state_, std::move(order)),
                   asio::bind_cancellation_slot(state_->hang_up.slot(), std::move(forgotten)));
}

head_start::~head_start() {
    if (!state_->over) state_->hang_up.emit(asio::cancellation_type::terminal);
}

void head_start::check() const {
    if (state_->error && state_->error->name == "no_space") state_->there.fail(*state_->error);
}

} // namespace sandboxd::sync
