#include "sandbox/account.hpp"

#include "base/fingerprint.hpp"
#include "core/cloud_error.hpp"
#include "sys/file.hpp"
#include "sys/peer.hpp"
#include "sys/settings.hpp"
#include "sys/version.hpp"

#include <spdlog/spdlog.h>

namespace sandboxd::sandbox {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

// Stands still while the machine sleeps.
milliseconds now() {
    return std::chrono::duration_cast<milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
}

milliseconds in_ms(std::chrono::system_clock::time_point when) {
    return std::chrono::duration_cast<milliseconds>(when.time_since_epoch());
}

// Goes on while the machine sleeps, as the cloud's clock does.
milliseconds elapsed() {
    timespec at{};
    ::clock_gettime(CLOCK_BOOTTIME, &at);
    return std::chrono::seconds(at.tv_sec) + milliseconds(at.tv_nsec / 1'000'000);
}

} // namespace

std::unique_ptr<cloud::client> account::make_client() {
    cloud::client_options options;
    options.base_url = base_url_;
    options.user_agent = std::string("deepinfra-sandboxd/") + std::string(sys::version());
    options.on_date = [this](std::optional<std::chrono::system_clock::time_point> date) {
        if (date) {
            clock_.on_date(elapsed(), now(), in_ms(*date));
        } else {
            clock_.on_no_date();
        }
    };
    return std::make_unique<cloud::client>(executor_, std::move(options));
}

account::account(asio::any_io_executor executor, std::string base_url, secret key,
                 std::filesystem::path state_dir)
    : executor_(std::move(executor)), base_url_(std::move(base_url)),
      state_dir_(std::move(state_dir)), key_(std::move(key)), boot_(sys::boot_id()),
      clock_(elapsed(), in_ms(std::chrono::system_clock::now())), client_(make_client()) {
    if (!key_.empty()) {
        fingerprint_ = key_fingerprint(key_);
        client_->set_key(key_);
    }
}

void account::require_configured() const {
    if (!configured()) {
        throw rpc_error(error_name::not_configured, "the daemon has no DeepInfra API key yet");
    }
}

asio::awaitable<void> account::set_key(secret key) {
    try {
        sys::check_api_key(key);
    } catch (const std::invalid_argument& problem) {
        throw rpc_error(error_name::invalid_params, problem.what());
    }
    if (key == key_ && !key_refused_) {
        co_return;
    }
    if (configured() && key != key_) {
        // Asked now, whatever was heard before: an idle daemon has not heard that its key was
        // withdrawn, and a single 401 may have been somebody's mistake: what the key in use has
        // made would be nobody's.
        const auto about_the_one_in_use = co_await client_->list();
        observe(about_the_one_in_use);
        if (about_the_one_in_use.has_value() ||
            about_the_one_in_use.error().kind != cloud::failure_kind::unauthorized) {
            throw mismatch();
        }
    }
    const std::unique_ptr<cloud::client> trial = make_client();
    trial->set_key(key);
    const auto listed = co_await trial->list();
    if (!listed.has_value()) {
        throw core::plain_error_from(listed.error(), "trying the API key");
    }
    if (configured() && key != key_ && !key_refused_) {
        throw mismatch(); // somebody else's was taken meanwhile
    }
    if (key == key_) { // it is good again, and kept where it came from
        pacing_.on_new_key();
        note_success(purpose::anything);
        co_return;
    }
    try {
        sys::atomic_write(state_dir_ / "api-key", std::string(key.reveal()) + "\n", 0600);
    } catch (const std::exception& problem) {
        throw rpc_error(error_name::internal_error,
                        std::string("the API key could not be kept: ") + problem.what());
    }
    key_ = std::move(key);
    fingerprint_ = key_fingerprint(key_);
    client_->set_key(key_);
    pacing_.on_new_key();
    note_success(purpose::anything);
    spdlog::info("a client handed over the API key (fingerprint {})", fingerprint_);
}

rpc_error account::mismatch() const {
    return {error_name::account_mismatch,
            "this daemon works with another API key (fingerprint " + fingerprint_ +
                "), and the platform does not say that it refuses that one"};
}

std::optional<cloud::failure> account::held_back(purpose what) const {
    return pacing_.held_back(now(), what);
}

milliseconds account::cloud_now() const {
    return clock_.at(elapsed());
}

void account::resume_clock(const core::clock_mark& known) {
    clock_.resume(known, !boot_.empty() && known.boot == boot_, elapsed());
}

core::clock_mark account::clock_mark() const {
    const milliseconds at = elapsed();
    return {boot_, at, clock_.at(at)};
}

std::optional<milliseconds> account::clock_ahead() const {
    return clock_.ahead(elapsed(), in_ms(std::chrono::system_clock::now()));
}

double account::jitter() {
    return std::uniform_real_distribution<double>(0, 1)(random_);
}

void account::note_success(purpose what) {
    pacing_.on_success(what);
    key_refused_ = false;
    note_answer();
}

void account::note_answer() {
    constexpr std::chrono::seconds outage{5};
    if (!unreachable_) {
        return;
    }
    unreachable_.reset();
    if (now() - unreachable_since_ >= outage && on_reconnect) {
        on_reconnect();
    }
}

void account::note(const cloud::failure& failure) {
    using kind = cloud::failure_kind;
    if (failure.withheld) {
        return;
    }
    pacing_.on_failure(now(), failure, jitter());
    if (failure.kind == kind::unreachable || failure.kind == kind::interrupted) {
        if (!unreachable_) {
            unreachable_since_ = now();
        }
        unreachable_ = failure.message;
        return;
    }
    note_answer(); // any status at all is one
    if (failure.kind == kind::unauthorized) {
        key_refused_ = true;
    }
}

} // namespace sandboxd::sandbox
