// get and pull: see service.hpp.
//
// One call in the sandbox packs what is asked for into parts; each part is fetched into a spool
// file and taken apart on another thread while the next one comes. What comes of it is moved into
// place when all of it is there. Whatever is asked of the file system that it goes to is asked on
// threads of their own, as a mount may hang.
#include "base/error.hpp"
#include "base/id.hpp"
#include "sync/archive_reader.hpp"
#include "sync/host_stage.hpp"
#include "sync/path.hpp"
#include "sync/sandbox_side.hpp"
#include "sync/spool.hpp"
#include "sync/teller.hpp"
#include "sync/workshop.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <exception>
#include <map>
#include <system_error>

namespace sandboxd::sync {
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

constexpr double slow_line = 40e6; // bytes a second; python's gzip is hardly faster
constexpr std::uint64_t room_to_spare = 1U << 20;

class fetching {
public:
    fetching(std::shared_ptr<workshop> shop, fetch_request request, listeners who)
        : shop_(std::move(shop)), request_(std::move(request)), who_(std::move(who)),
          teller_(who_.on_transfer), taken_(std::make_shared<condition>(shop_->executor)) {}

    asio::awaitable<fetch_result> run() {
        const fs::path target(request_.host);
        // Before a sandbox is started for nothing.
        const bool has_place = co_await shop_->on_its_own(
            [&target] { return fs::is_directory(target.parent_path()); });
        if (!has_place) {
            throw rpc_error(error_name::host_file,
                            "there is no directory " + target.parent_path().string());
        }
        if (!shop_->known(request_.key)) {
            throw rpc_error(error_name::sandbox_not_found,
                            "there is no sandbox for " + describe(request_.key));
        }
        const key_lock turn = co_await key_lock::take_to_fetch(*shop_, request_.key);
        check_wanted();
        for (bool last = false;; last = true) {
            sandbox::lease held = co_await hold();
            const auto lease = std::make_shared<sandbox::lease>(std::move(held));
            try {
                co_return co_await fetch(lease, target);
            } catch (const sandbox_lost& why) {
                throw_if_overruled(*lease, why);
                if (last) throw_lost_again(why);
            }
            shop_->manager.distrust(request_.key);
        }
    }

private:
    asio::awaitable<sandbox::lease> hold() {
        sandbox::wanted as_it_is;
        as_it_is.only_existing = true;
        as_it_is.still_there = who_.still_there;
        const std::string name = "fs.get-" + random_hex(4);
        if (request_.generation) {
            co_return co_await shop_->manager.hold_generation(request_.key, *request_.generation,
                                                              as_it_is, name, who_.on_sandbox);
        }
        co_return co_await shop_->manager.acquire(request_.key, as_it_is, name, who_.on_sandbox);
    }

    void check_wanted() const {
        if (shop_->stopping) throw rpc_error(error_name::shutting_down, "the daemon is stopping");
        if (who_.still_there && !who_.still_there()) {
            throw rpc_error(error_name::cancelled, "nobody waits for it any more");
        }
    }

    asio::awaitable<fetch_result> fetch(std::shared_ptr<sandbox::lease> lease, fs::path target) {
        const std::string id = lease->record().sandbox_id;
        const auto operation = std::make_shared<operation_name>(shop_, id);
        const auto there =
            std::make_shared<sandbox_side>(shop_->executor, shop_->account, id, operation->text());
        teller_.tell("packing", 0, std::nullopt);
        received_ = 0;
        const std::uint64_t part_bytes = shop_->download.part_size();
        const bool compress = shop_->download.rate() < slow_line;
        std::map<std::string, std::string> known;
        if (request_.changed_only) {
            const manifest pushed = co_await shop_->load(id);
            known = pushed.contents_below(request_.remote);
        }
        json::object asked = pack_arguments(operation->text(), shop_->live_in(id), request_.remote,
                                            part_bytes, compress, request_.max_bytes, known);
        const json::object said = co_await there->call("pack", std::move(asked));
        const std::optional<pack_answer> packed = parse_pack(said, part_bytes);
        if (!packed) {
            throw rpc_error(error_name::sync_failed, "the sandbox's answer makes no sense");
        }
        // Whatever comes of it, what the sandbox has packed is not needed any more then.
        struct dropping {
            fetching& of;
            std::shared_ptr<sandbox::lease> lease;
            std::shared_ptr<operation_name> operation;
            std::shared_ptr<sandbox_side> there;
            std::vector<std::string> live;
            ~dropping() { of.drop_later(lease, operation, there, live); }
        };
        const dropping afterwards{*this, lease, operation, there, shop_->live_in(id)};
        const auto stage = co_await shop_->on_its_own([&] {
            const fs::path parent = stage_parent(target);
            check_room(parent, *packed);
            return std::make_unique<host_stage>(parent, shop_->stages, operation->text(),
                                                shop_->tidy_until);
        });
        const fs::path arrived = stage->path() / "arrived";
        fetch_result result;
        std::exception_ptr trouble; // kept, as the stage has to be removed first
        try {
            archive_taken taken = co_await transfer(*packed, *there, arrived, target);
            result = co_await place(*packed, std::move(taken), arrived, target);
        } catch (...) {
            trouble = std::current_exception();
        }
        co_await shop_->on_its_own([&stage] { return stage->remove(); });
        if (trouble) std::rethrow_exception(trouble);
        co_return result;
    }

    void check_room(const fs::path& parent, const pack_answer& packed) const {
        if (request_.max_bytes && packed.bytes > *request_.max_bytes) {
            throw rpc_error(error_name::too_large,
                            "there are " + std::to_string(packed.bytes) +
                                " bytes, more than was asked for at the most");
        }
        struct statvfs status {};
        if (::statvfs(parent.c_str(), &status) != 0) return;
        const std::uint64_t available = std::uint64_t(status.f_bavail) * status.f_frsize;
        const std::string there = " free in " + parent.string();
        if (packed.unpacked + room_to_spare > available) {
            throw_no_space_here("there are " + std::to_string(packed.unpacked) +
                                " bytes to fetch, and " + std::to_string(available) + there);
        }
        // Some file systems make them as they are needed, and tell of none.
        if (!request_.as_tar && status.f_files != 0 && packed.members > status.f_favail) {
            throw_no_space_here("there are " + std::to_string(packed.members) +
                                " files and directories to fetch, and " +
                                std::to_string(status.f_favail) + " inodes" + there);
        }
    }

    // How long a member's path may be below what was asked for: it is to be named here by whole
    // paths, and in a tar by programs that do.
    std::size_t longest_below(const fs::path& arrived, const fs::path& target) const {
        const std::size_t before = request_.as_tar
                                       ? request_.remote.size()
                                       : std::max(arrived.native().size(), target.native().size());
        return before < PATH_MAX ? PATH_MAX - 1 - before : 0;
    }

    asio::awaitable<archive_taken> transfer(const pack_answer& packed, sandbox_side& there,
                                            const fs::path& arrived, const fs::path& target) {
        using namespace asio::experimental::awaitable_operators;
        const auto feed = std::make_shared<part_feed>();
        feed->on_taken = [executor = shop_->executor, taken = taken_] {
            asio::post(executor, [taken] { taken->notify_all(); });
        };
        shop_->feeds.insert(feed);
        // The reader must come to its end whatever becomes of the fetching.
        struct ending {
            std::shared_ptr<part_feed> feed;
            ~ending() { feed->abandon(); }
        };
        archive_rules rules;
        rules.prefix = request_.remote.substr(1);
        rules.drop = {packed.drop.begin(), packed.drop.end()};
        rules.members = packed.members;
        rules.max_bytes = packed.bytes;
        rules.longest_below = longest_below(arrived, target);
        archive_taken taken;
        std::exception_ptr trouble;
        const auto fetch_all = [&]() -> asio::awaitable<void> {
            try {
                co_await fetch_parts(packed, there, *feed);
                feed->finish();
            } catch (...) {
                trouble = std::current_exception();
                feed->abandon();
            }
        };
        const auto read_all = [&]() -> asio::awaitable<void> {
            const ending whatever_happens{feed};
            try {
                taken = co_await shop_->on_its_own([&] { return read(*feed, rules, arrived); });
            } catch (...) {
                if (!trouble) trouble = std::current_exception();
            }
        };
        co_await (fetch_all() && read_all());
        shop_->feeds.erase(feed);
        if (trouble) std::rethrow_exception(trouble);
        co_return taken;
    }

    // On a thread of its own.
    archive_taken read(part_feed& feed, const archive_rules& rules, const fs::path& file) const {
        if (!request_.as_tar) {
            return unpack_archive(feed, rules, file.parent_path().string(), file.filename());
        }
        const sys::unique_fd fd(
            ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (!fd) {
            throw std::system_error(errno, std::generic_category(), "cannot make " + file.string());
        }
        return copy_archive(feed, rules, fd.get());
    }

    asio::awaitable<void> fetch_parts(const pack_answer& packed, sandbox_side& there,
                                      part_feed& feed) {
        std::uint64_t total = 0;
        for (const std::uint64_t size : packed.sizes)
            total += size;
        for (std::size_t i = 0; i < packed.sizes.size(); ++i) {
            while (!feed.wants_more() && !shop_->stopping)
                co_await taken_->wait();
            check_wanted();
            if (feed.ended()) co_return; // what the reader says of it is the answer
            sys::unique_fd spool = open_spool(shop_->state, packed.sizes[i]);
            const auto begun = std::chrono::steady_clock::now();
            co_await fetch_part(there, i, spool.get(), packed.sizes[i], total);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
            shop_->download.took(packed.sizes[i], took.count());
            wire_bytes_ += packed.sizes[i];
            received_ += packed.sizes[i];
            feed.push(std::move(spool));
        }
    }

    asio::awaitable<void> fetch_part(sandbox_side& there, std::size_t number, int fd,
                                     std::uint64_t size, std::uint64_t total) {
        using namespace asio::experimental::awaitable_operators;
        std::exception_ptr trouble; // kept, as both have to come to their end
        std::uint64_t come = 0;
        asio::steady_timer tick(shop_->executor);
        bool done = false;
        const auto get = [&]() -> asio::awaitable<void> {
            try {
                co_await there.get_part(number, fd, size, come);
            } catch (...) {
                trouble = std::current_exception();
            }
            done = true;
            tick.cancel();
        };
        const auto report = [&] { teller_.tell("receiving", received_ + come, total); };
        co_await (get() && keep_telling(tick, done, report));
        if (trouble) std::rethrow_exception(trouble);
        report();
    }

    asio::awaitable<fetch_result> place(const pack_answer& packed, archive_taken taken,
                                        fs::path arrived, fs::path target) {
        fetch_result result{packed.directory,
                            taken.files,
                            taken.bytes,
                            wire_bytes_,
                            std::move(taken.skipped),
                            packed.skipped_more + taken.skipped_more};
        for (const pack_answer::left_out& each : packed.skipped) {
            const skip_reason reason = each.reason == "special"    ? skip_reason::special
                                       : each.reason == "changing" ? skip_reason::changing
                                                                   : skip_reason::unreadable;
            result.skipped.push_back({{}, each.remote, reason, each.text});
        }
        check_wanted();
        const std::optional<std::vector<not_moved>> left =
            co_await shop_->on_its_own([&]() -> std::optional<std::vector<not_moved>> {
                struct stat status {};
                if (::lstat(arrived.c_str(), &status) != 0) return std::nullopt;
                return move_into_place(arrived, target);
            });
        if (!left) {
            const std::string why = result.skipped.empty() ? "" : ": " + result.skipped[0].text;
            throw rpc_error(error_name::sync_failed,
                            "nothing of " + request_.remote + " could be taken over" + why);
        }
        if (!left->empty() && left->front().path.empty()) {
            throw rpc_error(error_name::in_the_way, target.string() + ": " + left->front().text);
        }
        for (const not_moved& each : *left) {
            result.files -= std::min(result.files, each.files);
            result.bytes -= std::min(result.bytes, each.bytes);
            result.skipped.push_back({(target / each.path).string(),
                                      request_.remote + "/" + each.path, skip_reason::in_the_way,
                                      each.text});
        }
        co_return result;
    }

    // The caller need not wait for that, but the sandbox must.
    void drop_later(std::shared_ptr<sandbox::lease> lease,
                    std::shared_ptr<operation_name> operation, std::shared_ptr<sandbox_side> there,
                    std::vector<std::string> live) {
        if (shop_->stopping) return;
        asio::co_spawn(
            shop_->executor,
            [lease, operation, there, live]() -> asio::awaitable<void> {
                try {
                    json::object asked = drop_arguments(operation->text(), live);
                    co_await there->call("drop", std::move(asked));
                } catch (const rpc_error&) {
                    // The next transfer sweeps it.
                }
            },
            asio::detached);
    }

    std::shared_ptr<workshop> shop_;
    fetch_request request_;
    listeners who_;
    teller teller_;
    std::shared_ptr<condition> taken_;
    std::uint64_t wire_bytes_ = 0;
    std::uint64_t received_ = 0; // of them, in this attempt
};

} // namespace

asio::awaitable<fetch_result> run_fetch(std::shared_ptr<workshop> shop, fetch_request request,
                                        listeners who) {
    shop->account.require_configured();
    fetching operation(shop, std::move(request), std::move(who));
    try {
        co_return co_await operation.run();
    } catch (const std::system_error& problem) {
        if (problem.code().category() != std::generic_category()) throw;
        throw_host_trouble(problem, "writing what was fetched");
    }
}

} // namespace sandboxd::sync
