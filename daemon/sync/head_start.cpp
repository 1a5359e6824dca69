#include "sync/head_start.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>

#include <exception>
#include <string>
#include <utility>

namespace sandboxd::sync {
namespace asio = boost::asio;

struct head_start::state {
    sandbox_side there;
    bool out_of_room = false;
    asio::cancellation_signal hang_up;

    explicit state(sandbox_side where) : there(std::move(where)) {}

    static asio::awaitable<void> unpack(std::shared_ptr<state> self, json::object order) {
        const std::string error = co_await self->there.attempt("unpack", std::move(order));
        self->out_of_room = error == "no_space";
    }
};

head_start::head_start(const asio::any_io_executor& executor, sandbox_side there,
                       json::object order)
    : state_(std::make_shared<state>(std::move(there))) {
    const auto forgotten = [](const std::exception_ptr&) {};
    asio::co_spawn(executor, state::unpack(state_, std::move(order)),
                   asio::bind_cancellation_slot(state_->hang_up.slot(), forgotten));
}

head_start::~head_start() {
    state_->hang_up.emit(asio::cancellation_type::terminal);
}

bool head_start::out_of_room() const noexcept {
    return state_->out_of_room;
}

} // namespace sandboxd::sync
