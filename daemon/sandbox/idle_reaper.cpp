// Stops what has been idle for too long; decides nothing itself (core/reaper).
#include "core/reaper.hpp"

#include "sandbox/entry.hpp"
#include "sandbox/manager.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

namespace sandboxd::sandbox {
namespace asio = boost::asio;

using namespace asio::experimental::awaitable_operators;

asio::awaitable<void> manager::reap() {
    while (!reconciled_) {
        co_await activity_->wait(); // what is not known for sure is not stopped
    }
    for (;;) {
        std::vector<core::reap_candidate> candidates;
        for (const auto& [key, each] : entries_) {
            if (is_of_account(*each)) {
                candidates.push_back(
                    {key, each->record.state, is_in_use(*each), now() - each->last_used});
            }
        }
        const core::reap_plan plan = core::plan_reaping(candidates, options_.idle_stop);
        for (const core::sandbox_key& key : plan.stop) {
            spdlog::info("{}: idle for {} s, stopping it", describe(key),
                         options_.idle_stop.count() / 1000);
            begin(entry_for(key), operation_kind::stop, {});
        }
        if (plan.look_again_in) {
            asio::steady_timer timer(executor_, *plan.look_again_in);
            co_await (timer.async_wait(asio::use_awaitable) || activity_->wait());
        } else {
            co_await activity_->wait();
        }
    }
}

} // namespace sandboxd::sandbox
