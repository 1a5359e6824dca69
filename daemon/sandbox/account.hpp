// The one account this daemon works for: base URL, key, and how well the platform takes them.
//
// Owns the cloud client. Lives as long as the daemon. The key may come later than the daemon (a
// client hands it over); it is then kept 0600 in the state directory, so that a restarted daemon
// can still stop what it has started.
#pragma once

#include "base/error.hpp"
#include "base/secret.hpp"
#include "cloud/client.hpp"
#include "core/cloud_clock.hpp"
#include "core/pacing.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

namespace sandboxd::sandbox {

class account {
public:
    // `key` may be empty: not configured yet.
    account(boost::asio::any_io_executor executor, std::string base_url, secret key,
            std::filesystem::path state_dir);

    cloud::client& cloud() noexcept { return *client_; }
    bool configured() const noexcept { return !key_.empty(); }
    const std::string& base_url() const noexcept { return base_url_; }
    const std::string& fingerprint() const noexcept {
        return fingerprint_;
    } // empty if not configured

    void require_configured() const; // throws rpc_error not_configured

    // Takes a client's key: asks the platform whether it is good, keeps it, works with it from then
    // on. The key in use is answered well at once; a different one is refused unless the platform
    // says, asked at that moment, that it does not take the one in use. Throws rpc_error:
    // unauthorized, account_mismatch, cloud_unreachable, or internal_error when it cannot be kept.
    boost::asio::awaitable<void> set_key(secret key);

    using purpose = core::pacing::purpose;

    // A request of the life cycle: `call` makes it on the client it is given. Not sent, but
    // answered as held_back() says, while the platform wants patience or refuses the key.
    template <class Call>
    auto ask(Call call, purpose what = purpose::anything)
        -> decltype(call(std::declval<cloud::client&>())) {
        using outcome = typename decltype(call(std::declval<cloud::client&>()))::value_type;
        if (const std::optional<cloud::failure> held = held_back(what)) {
            co_return outcome(*held);
        }
        outcome answer = co_await call(*client_);
        observe(answer, what);
        co_return answer;
    }
    // What a request would be answered with without being sent; nothing: it may be sent.
    std::optional<cloud::failure> held_back(purpose what = purpose::anything) const;

    // To be told how every other request ended, so that health can say what is wrong.
    template <class T>
    const cloud::result<T>& observe(const cloud::result<T>& outcome,
                                    purpose what = purpose::anything) {
        if (outcome.has_value()) {
            note_success(what);
        } else {
            note(outcome.error());
        }
        return outcome;
    }
    bool key_refused() const noexcept { return key_refused_; }
    // Why the platform could not be reached the last time; nothing if it could.
    const std::optional<std::string>& unreachable() const noexcept { return unreachable_; }
    // The cloud's time, since the Unix epoch; see core/cloud_clock.hpp.
    std::chrono::milliseconds cloud_now() const;
    const core::cloud_clock& clock() const noexcept { return clock_; }
    // How far this machine's clock is ahead of what the last answer said; nothing before the first.
    std::optional<std::chrono::milliseconds> clock_ahead() const;
    // Before the first request: what the last daemon knew of the time.
    void resume_clock(const core::clock_mark& known);
    core::clock_mark clock_mark() const; // to be kept; of a usable clock only
    // Called when the platform answers again after an outage of some seconds.
    std::function<void()> on_reconnect;
    // 0 to 1, at random: so that several daemons of one account do not ask in step.
    double jitter();

private:
    std::unique_ptr<cloud::client> make_client();
    rpc_error mismatch() const;
    void note_success(purpose what);
    void note(const cloud::failure& failure);
    void note_answer(); // any at all

    boost::asio::any_io_executor executor_;
    std::string base_url_;
    std::filesystem::path state_dir_;
    secret key_;
    std::string fingerprint_;
    std::string boot_; // of the machine
    core::cloud_clock clock_;
    std::unique_ptr<cloud::client> client_; // tells the clock what it hears
    core::pacing pacing_;
    std::minstd_rand random_{std::random_device{}()};
    bool key_refused_ = false;
    std::optional<std::string> unreachable_;
    std::chrono::milliseconds unreachable_since_{0}; // monotonic
};

} // namespace sandboxd::sandbox
