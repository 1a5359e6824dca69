// States, time limits and the cap; see platform.hpp.
#include "cloud/platform.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/json.hpp>

#include <sys/stat.h>

#include <iostream>
#include <random>

namespace asio = boost::asio;
namespace fs = std::filesystem;
namespace json = boost::json;
using steady = std::chrono::steady_clock;

namespace emulator::cloud {

namespace {

steady::duration seconds(double s) {
    return std::chrono::duration_cast<steady::duration>(std::chrono::duration<double>(s));
}

} // namespace

void remove_tree(const fs::path& path) {
    std::error_code ec;
    fs::remove_all(path, ec);
    if (!ec) return;
    for (int depth = 0; depth < 64 && fs::exists(path, ec); ++depth) {
        ::chmod(path.c_str(), 0700);
        fs::recursive_directory_iterator it(path, fs::directory_options::skip_permission_denied,
                                            ec),
            end;
        for (; !ec && it != end; it.increment(ec))
            if (it->is_directory(ec) && !it->is_symlink(ec)) ::chmod(it->path().c_str(), 0700);
        fs::remove_all(path, ec);
    }
}

std::string_view name_of(state which) {
    switch (which) {
    case state::creating:
        return "creating";
    case state::starting:
        return "starting";
    case state::running:
        return "running";
    case state::stopping:
        return "stopping";
    case state::stopped:
        return "stopped";
    case state::failed:
        return "failed";
    case state::deleted:
        return "deleted";
    }
    return "";
}

std::vector<plan> catalog() {
    return {{"small", 1, 2, 10, 0.02}, {"medium", 2, 4, 20, 0.04}, {"large", 4, 8, 40, 0.08}};
}

platform::platform(asio::any_io_executor executor, const config& settings, recorder& records,
                   cell::launcher& launcher, fs::path data)
    : executor_(std::move(executor)), config_(settings), records_(records), launcher_(launcher),
      data_(std::move(data)) {}

void platform::spawn(task<void> work) {
    asio::co_spawn(executor_, std::move(work), [](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const std::exception& what) {
            std::cerr << "platform: " << what.what() << std::endl;
        }
    });
}

std::string platform::new_id() {
    static std::mt19937_64 random{std::random_device{}()};
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(random()));
    return config_.id_style == "odd" ? std::string("sb_a/b c%2F?#+\xC3\xA9_") + digits
                                     : std::string("sb_") + digits;
}

std::size_t platform::active(int account) const {
    std::size_t count = 0;
    for (const auto& [serial, one] : sandboxes_)
        count += one->account == account && one->active();
    return count;
}

void platform::check_cap(int account) const {
    const auto most = static_cast<std::size_t>(config_.max_active);
    if (active(account) < most) return;
    const std::string text =
        "You have reached the maximum of " + std::to_string(most) + " active sandboxes";
    throw api_error{429, text,
                    json::serialize(json::object{{"detail", json::object{{"error", text}}}})};
}

sandbox_ptr platform::create(int account, const wish& what) {
    bool known = what.plan.empty();
    for (const auto& one : catalog())
        known = known || one.id == what.plan;
    if (!known) throw api_error{std::stoi(config_.unknown_plan), "Unknown plan: " + what.plan};
    check_cap(account);
    auto made = std::make_shared<sandbox>(executor_);
    const auto serial = ++serial_;
    made->id = new_id();
    made->account = account;
    made->plan = what.plan.empty() ? "medium" : what.plan;
    made->image = what.image.empty() ? "default" : what.image;
    made->tags = what.tags;
    made->timeout_s = what.timeout_s;
    made->created_at = unix_now();
    made->directory = data_ / ("sandbox-" + std::to_string(serial));
    fs::create_directories(made->workspace());
    fs::create_directories(made->directory / "staging");
    ::chmod(made->workspace().c_str(), 0755);
    sandboxes_[serial] = made;
    ++records_.sandboxes_created;
    change(made, state::creating);
    spawn(
        boot(made, made->epoch, config_.boot_ms, config_.boot_outcome, config_.boot_via_starting));
    return made;
}

void platform::start(const sandbox_ptr& which) {
    switch (which->now) {
    case state::stopped:
        break;
    case state::running:
    case state::starting:
        if (config_.start_when_running == "200") return;
        [[fallthrough]];
    default:
        throw api_error{409,
                        "Sandbox cannot be started in state " + std::string(name_of(which->now))};
    }
    check_cap(which->account);
    change(which, state::starting);
    spawn(boot(which, which->epoch, config_.start_ms, config_.start_outcome, false));
}

void platform::stop(const sandbox_ptr& which) {
    switch (which->now) {
    case state::running:
        break;
    case state::creating:
    case state::starting:
        if (config_.stop_when_booting == "200") break;
        throw api_error{409,
                        "Sandbox cannot be stopped in state " + std::string(name_of(which->now))};
    case state::stopping:
    case state::stopped:
        if (config_.stop_when_stopped == "200") return;
        [[fallthrough]];
    default:
        throw api_error{409,
                        "Sandbox cannot be stopped in state " + std::string(name_of(which->now))};
    }
    change(which, state::stopping);
    spawn(halt(which, which->epoch, config_.stop_ms, config_.stop_outcome));
}

task<void> platform::remove(sandbox_ptr which) {
    if (which->now == state::deleted) {
        if (config_.delete_when_deleted == "200") co_return;
        throw api_error{std::stoi(config_.delete_when_deleted), "Sandbox is deleted"};
    }
    co_await force(which, state::deleted);
}

task<void> platform::force(sandbox_ptr which, state to) {
    change(which, to);
    co_await empty(which);
    if (to == state::deleted) remove_tree(which->directory);
}

// Whatever is inside dies; returns when all of it is dead.
task<void> platform::empty(sandbox_ptr which) {
    auto inside = std::move(which->inside);
    which->inside.reset();
    if (!inside) co_return;
    inside->kill();
    co_await inside->gone();
}

sandbox_ptr platform::find(int account, const std::string& id) const {
    for (const auto& [serial, one] : sandboxes_)
        if (one->account == account && one->id == id) return one;
    throw api_error{404, "Sandbox not found"};
}

std::vector<sandbox_ptr> platform::list(int account) const {
    std::vector<sandbox_ptr> out;
    for (const auto& [serial, one] : sandboxes_)
        if (one->account == account && (config_.list_deleted || one->now != state::deleted))
            out.push_back(one);
    return out;
}

std::vector<sandbox_ptr> platform::all() const {
    std::vector<sandbox_ptr> out;
    for (const auto& [serial, one] : sandboxes_)
        out.push_back(one);
    return out;
}

json::object platform::describe(const sandbox& which) const {
    json::object out;
    out["sandbox_id"] = which.id;
    out["plan"] = which.plan;
    out["image"] = which.image;
    out["state"] = name_of(which.now);
    out["tags"] = which.tags;
    out["created_at"] = static_cast<std::int64_t>(which.created_at);
    out["provider"] = "emulator";
    return out;
}

void platform::change(const sandbox_ptr& which, state to) {
    which->now = to;
    ++which->epoch;
    which->since = steady::now();
    if (to == state::running) which->last_call = which->since;
    arm(which);
}

void platform::call_ends(const sandbox_ptr& which) {
    --which->calls_in_flight;
    touch(which);
}

void platform::touch(const sandbox_ptr& which) {
    which->last_call = steady::now();
    if (which->now == state::running) arm(which);
}

// When this state ends by itself.
std::optional<steady::time_point> platform::due(const sandbox& which) const {
    const double scale = config_.time_scale;
    if (which.now == state::running) {
        auto at = which.since + seconds(config_.running_cap_s / scale);
        if (config_.idle_check) {
            const double idle = which.timeout_s > 0 ? which.timeout_s : config_.default_idle_s;
            at = std::min(at, which.last_call + seconds(idle / scale));
        }
        return at;
    }
    if (which.now == state::stopped) return which.since + seconds(config_.stopped_keep_s / scale);
    if (which.now == state::deleted) return which.since + seconds(config_.deleted_keep_s / scale);
    return std::nullopt;
}

void platform::arm(const sandbox_ptr& which) {
    const auto at = due(*which);
    if (!at) {
        which->deadline.cancel();
        return;
    }
    which->deadline.expires_at(*at);
    which->deadline.async_wait([this, which](boost::system::error_code ec) {
        if (!ec) on_deadline(which);
    });
}

void platform::recompute_deadlines() {
    for (const auto& [serial, one] : sandboxes_)
        arm(one);
}

void platform::on_deadline(const sandbox_ptr& which) {
    const auto at = due(*which);
    if (!at || *at > steady::now()) return arm(which);
    if (which->now == state::running) {
        change(which, state::stopping);
        spawn(halt(which, which->epoch, config_.stop_ms, config_.stop_outcome));
    } else if (which->now == state::stopped) {
        spawn(force(which, state::deleted));
    } else if (which->now == state::deleted) {
        std::erase_if(sandboxes_, [&](const auto& entry) { return entry.second == which; });
    }
}

task<void> platform::boot(sandbox_ptr which, std::uint64_t epoch, std::int64_t after_ms,
                          std::string outcome, bool via_starting) {
    co_await sleep_ms(executor_, after_ms);
    if (which->epoch != epoch || outcome == "hang") co_return;
    if (via_starting) {
        change(which, state::starting);
        epoch = which->epoch;
        co_await sleep_ms(executor_, config_.start_ms);
        if (which->epoch != epoch) co_return;
    }
    if (outcome == "fail") {
        change(which, state::failed);
        co_return;
    }
    std::shared_ptr<cell::cell> inside;
    std::string failure;
    try {
        cell::cell::options how;
        how.workspace = which->workspace();
        how.staging = which->directory / "staging";
        how.hostname = "sandbox";
        how.scratch_mb = static_cast<std::uint64_t>(config_.scratch_mb);
        inside = co_await cell::cell::boot(executor_, launcher_, how);
    } catch (const cell::boot_error& error) {
        failure = error.what();
    }
    if (!inside) {
        std::cerr << "boot of " << which->id << " failed: " << failure << std::endl;
        if (which->epoch == epoch) change(which, state::failed);
        co_return;
    }
    if (which->epoch != epoch) { // stopped or deleted meanwhile
        inside->kill();
        co_await inside->gone();
        co_return;
    }
    which->inside = inside;
    ++which->boots;
    ++records_.boots;
    change(which, state::running);
    spawn(watch(which, inside));
}

// A cell that ends while its sandbox should be running has crashed.
task<void> platform::watch(sandbox_ptr which, std::shared_ptr<cell::cell> inside) {
    co_await inside->gone();
    if (which->inside == inside) {
        which->inside.reset();
        change(which, state::failed);
    }
}

task<void> platform::halt(sandbox_ptr which, std::uint64_t epoch, std::int64_t after_ms,
                          std::string outcome) {
    co_await empty(which);
    co_await sleep_ms(executor_, after_ms);
    if (which->epoch == epoch && outcome != "hang") change(which, state::stopped);
}

task<void> platform::close() {
    for (const auto& one : all())
        if (one->inside) one->inside->kill();
    for (const auto& one : all()) {
        ++one->epoch;
        one->deadline.cancel();
        co_await empty(one);
    }
}

} // namespace emulator::cloud
