// The platform: all sandboxes of all accounts, and how their states change.
//
// Methods do their effect before they return unless they are tasks; what takes time goes on in the
// background. Refusals are api_error.
#pragma once

#include "cloud/sandbox.hpp"
#include "config.hpp"
#include "recorder.hpp"

#include <map>
#include <optional>
#include <vector>

namespace emulator::cloud {

// A refusal, as status and message; the shape of its body is chosen where it is sent, unless `body`
// fixes it.
struct api_error {
    int status;
    std::string message;
    std::string body = {};
};

struct plan {
    std::string_view id;
    int vcpu, ram_gb, disk_gb;
    double price_per_hour;
};
std::vector<plan> catalog();

// Also where commands have left directories that even their owner cannot enter.
void remove_tree(const std::filesystem::path& path);

class platform {
public:
    platform(boost::asio::any_io_executor executor, const config& settings, recorder& records,
             cell::launcher& launcher, std::filesystem::path data);

    struct wish {
        std::string plan, image;
        boost::json::object tags;
        double timeout_s = 0;
    };
    sandbox_ptr create(int account, const wish& what);
    void start(const sandbox_ptr& which);
    void stop(const sandbox_ptr& which);
    task<void> remove(sandbox_ptr which);

    // 404 when unknown.
    sandbox_ptr find(int account, const std::string& id) const;
    std::vector<sandbox_ptr> list(int account) const; // in order of creation
    std::vector<sandbox_ptr> all() const;
    boost::json::object describe(const sandbox& which) const;
    std::size_t active(int account) const;

    void call_begins(const sandbox_ptr& which) { ++which->calls_in_flight; }
    void call_ends(const sandbox_ptr& which);
    void touch(const sandbox_ptr& which); // restarts the idle clock
    void recompute_deadlines();

    // Behind the client's back: at once, without the waiting states and their errors.
    task<void> force(sandbox_ptr which, state to);
    // Kills every cell and waits for the end of each.
    task<void> close();

    std::uint32_t next_command() { return next_command_++; }

private:
    void change(const sandbox_ptr& which, state to);
    void arm(const sandbox_ptr& which);
    void on_deadline(const sandbox_ptr& which);
    std::optional<std::chrono::steady_clock::time_point> due(const sandbox& which) const;
    task<void> boot(sandbox_ptr which, std::uint64_t epoch, std::int64_t after_ms,
                    std::string outcome, bool via_starting);
    task<void> watch(sandbox_ptr which, std::shared_ptr<cell::cell> inside);
    task<void> halt(sandbox_ptr which, std::uint64_t epoch, std::int64_t after_ms,
                    std::string outcome);
    task<void> empty(sandbox_ptr which);
    void check_cap(int account) const;
    std::string new_id();
    void spawn(task<void> work);

    boost::asio::any_io_executor executor_;
    const config& config_;
    recorder& records_;
    cell::launcher& launcher_;
    std::filesystem::path data_;
    std::uint64_t serial_ = 0;
    std::uint32_t next_command_ = 1;
    std::map<std::uint64_t, sandbox_ptr> sandboxes_; // by serial number
};

} // namespace emulator::cloud
