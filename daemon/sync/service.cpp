#include "sync/service.hpp"

#include "base/error.hpp"
#include "base/id.hpp"
#include "sync/helper.hpp"
#include "sync/host_stage.hpp"
#include "sync/path.hpp"
#include "sync/sandbox_side.hpp"
#include "sync/workshop.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

#include <malloc.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <set>
#include <system_error>
#include <utility>

namespace sandboxd::sync {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds news_every{250};
constexpr int fetches_at_once = 4; // of one key
constexpr int most_deletions = 4;  // of the same
// What earlier daemons have left is most often gone within that; what is not keeps nobody waiting.
constexpr std::chrono::seconds sweep_wait{2};
constexpr std::chrono::seconds longest_tidying{2};

} // namespace

workshop::workshop(asio::any_io_executor daemon, sandbox::manager& sandboxes,
                   sandbox::account& whose, const std::filesystem::path& state_dir)
    : executor(std::move(daemon)), manager(sandboxes), account(whose), state(state_dir),
      stages(state_dir / "stages"), manifests(state_dir / "manifests"), run(random_hex(run_bytes)) {
}

std::optional<core::sandbox_record> workshop::known(const core::sandbox_key& key) const {
    try {
        core::sandbox_record record = manager.get({key, {}}).record;
        if (!record.sandbox_id.empty() && record.base_url == account.base_url() &&
            record.fingerprint == account.fingerprint()) {
            return record;
        }
    } catch (const rpc_error&) {
        // There is none.
    }
    return std::nullopt;
}

// Two accounts, or two hosts, may use the same id.
std::string workshop::manifest_name(const std::string& sandbox_id) const {
    return account.base_url() + " " + account.fingerprint() + " " + sandbox_id;
}

asio::awaitable<manifest> workshop::load(std::string sandbox_id) {
    const std::string name = manifest_name(sandbox_id);
    co_return co_await elsewhere([this, &name] { return manifests.load(name); });
}

asio::awaitable<void> workshop::save(std::string sandbox_id, const manifest& what) {
    std::mt19937 own_chance(chance()); // as it is another thread's for a while
    watched[sandbox_id] = co_await elsewhere([this, &what, &own_chance] {
        manifests.save(what);
        return witnesses(what, own_chance);
    });
}

witnesses& workshop::watch(const std::string& sandbox_id) {
    auto found = watched.find(sandbox_id);
    if (found == watched.end()) {
        // Once a sandbox and daemon.
        const manifest remembered = manifests.load(manifest_name(sandbox_id));
        found = watched.emplace(sandbox_id, witnesses(remembered, chance)).first;
    }
    return found->second;
}

bool workshop::doubted(const std::string& sandbox_id) const {
    return manifests.doubted(manifest_name(sandbox_id));
}

void workshop::doubt(const std::string& sandbox_id) {
    ++warnings[sandbox_id];
    manifests.set_doubted(manifest_name(sandbox_id), true);
}

void workshop::settle(const std::string& sandbox_id) {
    manifests.set_doubted(manifest_name(sandbox_id), false);
}

void workshop::forget_the_gone(const std::vector<core::sandbox_record>& records) {
    std::set<std::string> files;
    std::set<std::string> ids;
    for (const core::sandbox_record& each : records) {
        if (each.sandbox_id.empty()) continue;
        files.insert(each.base_url + " " + each.fingerprint + " " + each.sandbox_id);
        ids.insert(each.sandbox_id);
    }
    manifests.keep_only(files);
    const auto is_gone = [&ids](const auto& each) { return !ids.contains(each.first); };
    std::erase_if(watched, is_gone);
    std::erase_if(warnings, is_gone);
}

std::vector<std::string> workshop::live_in(const std::string& sandbox_id) const {
    const auto found = live.find(sandbox_id);
    if (found == live.end()) return {};
    return {found->second.begin(), found->second.end()};
}

namespace {

asio::awaitable<key_lock> wait_for(workshop::lock_map& locks, asio::any_io_executor executor,
                                   core::sandbox_key key, int at_once) {
    std::shared_ptr<workshop::lock_state>& slot = locks[key];
    if (!slot) slot = std::make_shared<workshop::lock_state>(std::move(executor));
    const std::shared_ptr<workshop::lock_state> mine = slot;
    while (mine->taken == at_once)
        co_await mine->changed.wait();
    ++mine->taken;
    co_return key_lock(locks, std::move(key), mine);
}

} // namespace

asio::awaitable<key_lock> key_lock::take(workshop& shop, core::sandbox_key key) {
    return wait_for(shop.locks, shop.executor, std::move(key), 1);
}

asio::awaitable<key_lock> key_lock::take_to_fetch(workshop& shop, core::sandbox_key key) {
    return wait_for(shop.fetches, shop.executor, std::move(key), fetches_at_once);
}

key_lock::~key_lock() {
    if (!held_) return;
    --held_->taken;
    held_->changed.notify_all();
    // The map's and this one: nobody waits, and nobody else has it.
    if (held_.use_count() == 2) locks_.erase(key_);
}

operation_name::operation_name(std::shared_ptr<workshop> shop, std::string sandbox_id)
    : shop_(std::move(shop)), sandbox_id_(std::move(sandbox_id)),
      text_(name_operation(shop_->run, ++shop_->operations)) {
    shop_->live[sandbox_id_].insert(text_);
}

operation_name::~operation_name() {
    const auto mine = shop_->live.find(sandbox_id_);
    mine->second.erase(text_);
    if (mine->second.empty()) shop_->live.erase(mine);
}

asio::awaitable<void> keep_telling(asio::steady_timer& tick, const bool& done,
                                   std::function<void()> tell) {
    while (!done) {
        tick.expires_after(news_every);
        co_await tick.async_wait(asio::as_tuple(asio::use_awaitable));
        if (!done) tell();
    }
}

void throw_no_space_here(const std::string& text) {
    throw rpc_error(error_name::no_space, text,
                    "make room on this machine; df shows how full the disk of each directory is");
}

void throw_host_trouble(const std::system_error& problem, std::string_view doing) {
    const int error = problem.code().value();
    if (error == ECANCELED) {
        throw rpc_error(error_name::shutting_down, "the daemon is stopping");
    }
    const std::string text = "while " + std::string(doing) + ": " + problem.what();
    if (error == ENOSPC || error == EDQUOT) {
        throw_no_space_here("a disk of this machine is full, " + text);
    }
    throw rpc_error(error_name::host_file, text);
}

service::service(asio::any_io_executor executor, sandbox::manager& manager,
                 sandbox::account& account, const std::filesystem::path& state_dir)
    : shop_(std::make_shared<workshop>(std::move(executor), manager, account, state_dir)) {}

service::~service() {
    stop();
    if (shop_->pool) shop_->pool->join();
    for (asio::thread_pool& each : shop_->apart)
        each.join();
}

void service::sweep(const std::vector<core::sandbox_record>& records) {
    shop_->forget_the_gone(records);
    // Found now, as they are those of earlier daemons only.
    std::vector<std::filesystem::path> notes = stage_notes(shop_->stages);
    if (notes.empty()) return;
    std::packaged_task<void()> remove(
        [shop = shop_.get(), notes = std::move(notes)] { sweep_stages(notes, shop->tidy_until); });
    const std::future<void> removed = remove.get_future();
    shop_->pool.emplace(pool_threads);
    asio::post(*shop_->pool, std::move(remove));
    removed.wait_for(sweep_wait);
}

void service::stop() {
    if (!shop_->stopping.exchange(true)) {
        shop_->tidy_until = std::chrono::steady_clock::now() + longest_tidying;
    }
    for (const auto& each : shop_->feeds) {
        if (const std::shared_ptr<part_feed> feed = each.lock()) feed->abandon();
    }
}

namespace {

// A transfer of many files leaves the heap of a daemon that idles most of the time full of holes.
struct memory_given_back {
    memory_given_back() = default;
    memory_given_back(const memory_given_back&) = delete;
    memory_given_back& operator=(const memory_given_back&) = delete;
    ~memory_given_back() { ::malloc_trim(0); }
};

} // namespace

asio::awaitable<push_result> service::push(push_request request, listeners who) {
    const memory_given_back afterwards;
    co_return co_await run_push(shop_, std::move(request), std::move(who));
}

asio::awaitable<fetch_result> service::fetch(fetch_request request, listeners who) {
    const memory_given_back afterwards;
    co_return co_await run_fetch(shop_, std::move(request), std::move(who));
}

namespace {

// Of a sandbox that turns out to be gone: an empty one.
asio::awaitable<sandbox::lease> lease_to_delete(workshop& shop, core::sandbox_key key) {
    sandbox::wanted as_it_is;
    as_it_is.only_existing = true;
    try {
        co_return co_await shop.manager.acquire(key, as_it_is, "fs.delete-" + random_hex(4),
                                                nullptr);
    } catch (const rpc_error& problem) {
        const bool gone = problem.name() == error_name::sandbox_gone ||
                          problem.name() == error_name::sandbox_not_found;
        if (!gone) throw;
    }
    co_return sandbox::lease();
}

} // namespace

asio::awaitable<delete_result> service::remove(core::sandbox_key key,
                                               std::vector<std::string> paths) {
    const std::shared_ptr<workshop> shop = shop_;
    shop->account.require_configured();
    const key_lock lock = co_await key_lock::take(*shop, key);
    delete_result result;
    if (!shop->known(key)) {
        result.missing = paths.size();
        co_return result;
    }
    bool again = false;
    for (int swept = 0;;) {
        const sandbox::lease lease = co_await lease_to_delete(*shop, key);
        if (!lease) {
            result.missing = paths.size();
            co_return result;
        }
        const std::string id = lease.record().sandbox_id;
        const operation_name operation(shop, id);
        manifest remembered = co_await shop->load(id);
        // Before anything is deleted: should this be the end of the daemon, it is sent again.
        bool known = false;
        for (const std::string& path : paths)
            known = remembered.unsettle(path) || known;
        if (known) co_await shop->save(id, remembered);
        try {
            sandbox_side there(shop->executor, shop->account, id, operation.text());
            const std::vector<std::string> live = shop->live_in(id);
            json::object asked = paths_arguments(operation.text(), live, paths);
            const json::object said = co_await there.call("delete", std::move(asked));
            const auto answer = parse_delete(said, paths.size());
            if (!answer) {
                throw rpc_error(error_name::sync_failed, "the sandbox's answer makes no sense");
            }
            result.deleted = answer->deleted;
            result.missing = answer->missing;
            std::set<std::string> left;
            for (const helper_failure& each : answer->failed) {
                left.insert(paths[each.index]);
                result.failed.push_back({{}, paths[each.index], skip_reason::failed, each.text});
            }
            for (const std::string& path : paths) {
                if (!left.contains(path)) remembered.forget(path);
            }
            if (known) co_await shop->save(id, remembered);
            if (answer->by_link && !remembered.entries.empty()) shop->doubt(id);
            co_return result;
        } catch (const sandbox_lost& why) {
            throw_if_overruled(lease, why);
            if (std::exchange(again, true)) throw_lost_again(why);
            shop->manager.distrust(key);
        } catch (const parts_lost&) {
            // By what an earlier daemon had left at work there, see push.cpp.
            if (++swept == most_deletions) throw;
        }
    }
}

std::vector<std::string> service::marks(const std::string& sandbox_id) {
    return shop_->watch(sandbox_id).next(core::most_marks);
}

void service::on_unseen(const std::string& sandbox_id) {
    if (!shop_->watch(sandbox_id).nothing_pushed()) shop_->doubt(sandbox_id);
}

void service::on_marks(const std::string& sandbox_id, const std::vector<std::string>& paths,
                       const std::vector<std::optional<std::string>>& contents) {
    const auto found = shop_->watched.find(sandbox_id);
    if (found == shop_->watched.end()) return;
    const std::size_t count = std::min(paths.size(), contents.size());
    bool gone = false;
    for (std::size_t i = 0; i < count; ++i) {
        if (contents[i]) continue;
        spdlog::info("sandbox {}: {} was pushed, and is not there any more", sandbox_id, paths[i]);
        found->second.dismiss(paths[i]);
        gone = true;
    }
    if (gone) shop_->doubt(sandbox_id);
}

} // namespace sandboxd::sync
