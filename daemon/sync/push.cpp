// push and put: see service.hpp.
//
// Rounds: what has to go is read into an archive, part by part, each part is sent while others are
// read, and one call in the sandbox puts everything in place, on a quick line with the help of one
// that begins while parts still come; of very much there are several archives, each put in place
// while the next one is sent. A second round takes what changed while it was read, and what turns
// out to be missing: the first call also tells what of the rest is not there any more.
#include "base/error.hpp"
#include "base/id.hpp"
#include "sync/archive_writer.hpp"
#include "sync/head_start.hpp"
#include "sync/part_belt.hpp"
#include "sync/push_plan.hpp"
#include "sync/sandbox_side.hpp"
#include "sync/teller.hpp"
#include "sync/workshop.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace sandboxd::sync {
namespace asio = boost::asio;

namespace {

constexpr int most_rounds = 4;
constexpr std::size_t most_looked_at = 20'000; // paths of one call
constexpr const char* senseless = "the sandbox's answer makes no sense";
constexpr std::uint64_t first_part = 4U << 20; // nothing is sent before it is made
// Content of one archive, see batch_size().
constexpr std::uint64_t least_batch = 32U << 20;
constexpr std::uint64_t largest_batch = 1U << 30; // of a quick line
constexpr double soon = 60;                       // seconds
constexpr std::uint64_t shares = 3;
constexpr std::size_t most_in_batch = 20'000; // members, each of which the answer may have to name

class pushing {
public:
    pushing(std::shared_ptr<workshop> shop, push_request request, listeners who)
        : shop_(std::move(shop)), request_(std::move(request)), who_(std::move(who)),
          teller_(who_.on_transfer), plan_({request_.force, request_.remember}, shop_->stopping) {}

    asio::awaitable<push_result> run() {
        teller_.tell("preparing", 0, std::nullopt);
        plan_.found(
            co_await shop_->on_its_own([this] { return scan(request_.files, shop_->stopping); }));
        const auto record = shop_->known(request_.key);
        if (record) {
            co_await recall(record->sandbox_id);
            if (plan_.todo().empty() && !has_to_look()) co_return co_await finish();
        } else if (plan_.all().entries.empty()) {
            plan_.begin({});
            co_return co_await finish();
        }
        for (bool last = false;; last = true) {
            const sandbox::lease lease = co_await shop_->manager.acquire(
                request_.key, request_.want, "fs.push-" + random_hex(4), who_.on_sandbox);
            if (result_.sandbox_id != lease.record().sandbox_id) {
                co_await recall(lease.record().sandbox_id);
            }
            try {
                if (has_to_look()) co_await look();
                co_await send_all();
                co_return co_await finish();
            } catch (const sandbox_lost& why) {
                throw_if_overruled(lease, why);
                if (last) throw_lost_again(why);
            }
            shop_->manager.distrust(request_.key);
            result_.sandbox_id.clear();
        }
    }

private:
    // What that sandbox has, and what it lacks.
    asio::awaitable<void> recall(std::string sandbox_id) {
        result_.sandbox_id = std::move(sandbox_id);
        manifest remembered = co_await shop_->load(result_.sandbox_id);
        if (remembered.entries.empty()) forget_the_gone();
        plan_.begin(std::move(remembered));
        co_await select();
    }

    // A sandbox that nothing was pushed to before has most often taken the place of another.
    void forget_the_gone() {
        std::vector<core::sandbox_record> records;
        for (sandbox::view& each : shop_->manager.list())
            records.push_back(std::move(each.record));
        shop_->forget_the_gone(records);
    }

    asio::awaitable<void> select() {
        co_await shop_->on_its_own([this] {
            plan_.select();
            return true;
        });
    }

    bool has_to_look() const {
        return request_.remember && !request_.force && !plan_.remembered().entries.empty() &&
               shop_->doubted(result_.sandbox_id);
    }

    // Something that was pushed is not there any more: which of all that is known is it? What is
    // there, if another file by now, is somebody's work and stays.
    asio::awaitable<void> look() {
        const std::uint64_t warnings = shop_->warnings[result_.sandbox_id];
        std::vector<std::string> gone;
        const auto& entries = plan_.remembered().entries;
        for (auto next = entries.begin(); next != entries.end();) {
            std::vector<std::string> some;
            for (; next != entries.end() && some.size() < most_looked_at; ++next)
                some.push_back(next->first);
            const operation_name operation(shop_, result_.sandbox_id);
            sandbox_side there(shop_->executor, shop_->account, result_.sandbox_id,
                               operation.text());
            const std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
            json::object asked = paths_arguments(operation.text(), live, some);
            const json::object said = co_await there.call("look", std::move(asked));
            const auto answer = parse_look(said, some.size());
            if (!answer) throw rpc_error(error_name::sync_failed, senseless);
            for (const std::size_t i : *answer)
                gone.push_back(std::move(some[i]));
        }
        for (const std::string& each : gone)
            plan_.forget(each);
        // Also if nothing is gone, or not any more: what has told is to be asked again.
        co_await save(true);
        if (warnings == shop_->warnings[result_.sandbox_id]) shop_->settle(result_.sandbox_id);
        co_await select();
    }

    asio::awaitable<void> send_all() {
        for (int round = 0; !plan_.todo().empty() && round < most_rounds; ++round) {
            plan_.unsettle(name_in_a_directory());
            co_await save();
            bool lost = false;
            try {
                co_await send_round();
            } catch (const parts_lost&) {
                // By what an earlier daemon had left at work there, which swept: it comes to an
                // end.
                if (round + 1 == most_rounds) throw;
                lost = true;
            }
            if (lost) co_await select();
        }
        plan_.give_up_the_rest();
    }

    // A stretch of what has to go: its archive, its parts in the sandbox, and their call there.
    struct batch {
        push_plan::stretch what;
        operation_name operation;
        sandbox_side there;
        archive_writer archive;
        unpack_order order;
        std::size_t parts = 0; // that were sent
        std::size_t torn = 0;  // members that the sandbox was told of
        std::optional<head_start> early;

        batch(const pushing& of, push_plan::stretch which)
            : what(which), operation(of.shop_, of.result_.sandbox_id),
              there(of.shop_->executor, of.shop_->account, of.result_.sandbox_id, operation.text()),
              archive(of.plan_.entries(which), of.shop_->state, of.shop_->stopping) {}
    };

    // One way through all that has to go. What is sent is unpacked while the next batch is sent:
    // neither side waits for the other, and no more than three batches take room in the sandbox
    // twice.
    struct passage {
        explicit passage(asio::any_io_executor executor) : changed(std::move(executor)) {}

        std::unique_ptr<batch> sent; // to be unpacked
        bool unpacking = false;      // one that was sent
        bool all_sent = false;
        std::exception_ptr trouble; // ends both sides
        condition changed;

        std::uint64_t total = 0; // bytes of content
        std::uint64_t plain = 0; // of them in parts that were sent
        std::vector<std::string> claims;
        std::vector<std::string> gone; // of them
        bool again = false;

        // A sandbox that is lost is the reason of whatever else there is.
        void fail(std::exception_ptr why) {
            if (!trouble || is_lost(why)) trouble = std::move(why);
            changed.notify_all();
        }
    };

    static bool is_lost(const std::exception_ptr& why) {
        try {
            std::rethrow_exception(why);
        } catch (const sandbox_lost&) {
            return true;
        } catch (...) {
            return false;
        }
    }

    asio::awaitable<void> send_round() {
        using namespace asio::experimental::awaitable_operators;
        passage now(shop_->executor);
        now.claims = plan_.claims();
        now.total = plan_.content_of({0, plan_.todo().size()});
        co_await (send_batches(now) && unpack_batches(now));
        if (now.trouble) std::rethrow_exception(now.trouble);
        plan_.all_noted();
        if (!now.gone.empty()) {
            // Somebody has removed something: it may be more than what this push is about.
            shop_->doubt(result_.sandbox_id);
            co_await look();
        } else if (now.again) {
            co_await select();
        }
    }

    asio::awaitable<void> send_batches(passage& now) {
        std::uint64_t begun = 0; // bytes of content
        for (std::size_t end = 0; !now.trouble;) {
            const std::uint64_t size = batch_size(now.total - begun);
            const push_plan::stretch which = plan_.stretch_from(end, size, most_in_batch);
            if (which.size == 0) break;
            begun += plan_.content_of(which);
            end = which.begin + which.size;
            auto next = std::make_unique<batch>(*this, which);
            next->order.ours = plan_.ours();
            // With the first call, before anything of this push is in place.
            next->order.claims = std::exchange(now.claims, {});
            next->order.into = name_in_a_directory();
            try {
                co_await send_parts(*next, now);
            } catch (...) {
                now.fail(std::current_exception());
            }
            while (now.sent && !now.trouble)
                co_await now.changed.wait();
            if (now.trouble) {
                co_await drop(*next, now.trouble);
                break;
            }
            plan_.give_up_what_is_not_in(which, next->archive);
            if (next->archive.members().empty()) {
                now.claims = std::move(next->order.claims);
                next->early.reset();
                std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
                co_await next->there.drop(std::move(live));
                continue;
            }
            now.sent = std::move(next);
            now.changed.notify_all();
        }
        now.all_sent = true;
        now.changed.notify_all();
        spares_.clear(); // while the last one is unpacked
    }

    asio::awaitable<void> unpack_batches(passage& now) {
        for (;;) {
            while (!now.sent && !now.all_sent)
                co_await now.changed.wait();
            const std::unique_ptr<batch> next = std::move(now.sent);
            if (!next) co_return;
            now.unpacking = true;
            now.changed.notify_all();
            bool unpacked = false;
            try {
                if (!now.trouble) {
                    co_await unpack(*next, now);
                    unpacked = true;
                }
            } catch (...) {
                now.fail(std::current_exception());
            }
            if (!unpacked) co_await drop(*next, now.trouble);
            now.unpacking = false;
        }
    }

    // Bytes of content: of a quick line's much, as each costs a round trip and the start of an
    // interpreter; else a third of what is left, as the last one is unpacked while nothing else
    // goes on.
    std::uint64_t batch_size(std::uint64_t left) const {
        const std::uint64_t quick =
            shop_->upload.known()
                ? std::min(largest_batch, static_cast<std::uint64_t>(shop_->upload.rate() * soon))
                : 0;
        return std::max({least_batch, left / shares, quick});
    }

    // Worth it where all of it is there soon; one at a time.
    void begin_unpacking(batch& what, const passage& now) {
        if (what.early || now.trouble || now.sent || now.unpacking) return;
        const auto all = static_cast<double>(plan_.content_of(what.what));
        if (!shop_->upload.known() || all > 2 * soon * shop_->upload.rate()) return;
        const std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
        what.early.emplace(shop_->executor, what.there,
                           unpack_arguments(what.operation.text(), live, what.order));
    }

    // It may be the room for these parts that the sandbox lacks now.
    asio::awaitable<void> drop(batch& which, std::exception_ptr why) {
        bool reachable = true;
        try {
            std::rethrow_exception(why);
        } catch (const sandbox_lost&) {
            reachable = false;
        } catch (const rpc_error& problem) {
            reachable = problem.name() == error_name::no_space ||
                        problem.name() == error_name::sync_failed ||
                        problem.name() == error_name::cloud_error;
        } catch (...) {
        }
        which.early.reset();
        if (!reachable || shop_->stopping) co_return;
        const std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
        co_await which.there.drop(live);
    }

    asio::awaitable<void> unpack(batch& what, passage& now) {
        const std::vector<sent_member>& members = what.archive.members();
        unpack_order& order = what.order;
        order.parts = what.parts;
        if (now.all_sent) teller_.tell("unpacking", now.total, now.total);
        const std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
        json::object asked = unpack_arguments(what.operation.text(), live, order);
        const json::object said = co_await what.there.call("unpack", std::move(asked));
        const auto answer = parse_unpack(said, members.size(), order.claims.size());
        if (!answer) throw rpc_error(error_name::sync_failed, senseless);
        if (answer->into && !order.into.empty()) {
            result_.into = plan_.all().entries.front().remote + "/" + order.into;
            plan_.redirect(result_.into);
        }
        const bool again = plan_.note(what.what, members, answer->failed);
        now.again = now.again || again;
        for (const std::size_t i : answer->gone) {
            now.gone.push_back(order.claims[i]);
            if (!plan_.placed().contains(order.claims[i])) plan_.forget(order.claims[i]);
        }
        co_await save();
    }

    // Of a file that may go into the directory that is where it is to be; once it has, it has a
    // place of its own.
    std::string name_in_a_directory() const {
        const std::vector<local_entry>& all = plan_.all().entries;
        const bool one_file = all.size() == 1 && all.front().kind == file_kind::file;
        if (!request_.into_directory || !one_file || !result_.into.empty()) return {};
        // As it was named: what that leads to, if it is a link, may be called otherwise.
        return std::filesystem::path(request_.files.front().host).filename().string();
    }

    // Each is sent while others are made.
    asio::awaitable<void> send_parts(batch& what, passage& now) {
        using namespace asio::experimental::awaitable_operators;
        part_belt belt(shop_, what.archive, spares_);
        std::exception_ptr trouble; // kept, as both have to come to their end
        const auto send = [&]() -> asio::awaitable<void> {
            try {
                co_await send_from(belt, what, now);
            } catch (...) {
                trouble = std::current_exception();
            }
            belt.no_more_wanted();
        };
        const std::uint64_t first = what.what.begin == 0 ? first_part : shop_->upload.part_size();
        co_await (belt.make(first) && send());
        if (trouble) std::rethrow_exception(trouble);
    }

    asio::awaitable<void> send_from(part_belt& belt, batch& what, passage& now) {
        using namespace asio::experimental::awaitable_operators;
        while (!now.trouble) {
            std::optional<made_part> next = co_await belt.take();
            if (!next) break;
            if (what.early) what.early->check();
            if (next->torn.size() != what.torn) {
                what.torn = next->torn.size();
                std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
                co_await what.there.put_torn(what.parts, std::move(next->torn), std::move(live));
            }
            part& content = next->content;
            std::exception_ptr trouble; // kept, as both have to come to their end
            std::uint64_t gone = 0;
            asio::steady_timer tick(shop_->executor);
            bool done = false;
            const auto send = [&]() -> asio::awaitable<void> {
                try {
                    co_await send_part(what.there, what.parts, content, gone);
                } catch (...) {
                    trouble = std::current_exception();
                }
                done = true;
                tick.cancel();
            };
            const auto report = [&] {
                const std::uint64_t part = content.plain * gone / content.size;
                teller_.tell("sending", std::min(now.plain + part, now.total), now.total);
            };
            co_await (send() && keep_telling(tick, done, report));
            if (trouble) std::rethrow_exception(trouble);
            report();
            now.plain += content.plain;
            result_.wire_bytes += content.size;
            ++what.parts;
            spares_.push_back(std::move(content.fd));
            if (!next->last) begin_unpacking(what, now);
        }
    }

    asio::awaitable<void> send_part(sandbox_side& there, std::size_t number, const part& what,
                                    std::uint64_t& gone) {
        const auto begun = std::chrono::steady_clock::now();
        std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
        co_await there.put_part(number, what.fd.get(), what.size, gone, std::move(live));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        shop_->upload.took(what.size, took.count());
    }

    asio::awaitable<void> save(bool anyway = false) {
        if (!plan_.take_changed() && !anyway) co_return;
        try {
            co_await shop_->save(result_.sandbox_id, plan_.remembered());
        } catch (const std::system_error& problem) {
            throw_host_trouble(problem, "writing down what was sent");
        }
    }

    asio::awaitable<push_result> finish() {
        co_await save();
        for (const auto& [path, record] : plan_.placed()) {
            if (record.kind == file_kind::directory) continue;
            ++result_.sent;
            result_.bytes += record.print.size;
        }
        result_.unchanged = plan_.unchanged();
        result_.skipped = plan_.skipped();
        co_return std::move(result_);
    }

    std::shared_ptr<workshop> shop_;
    push_request request_;
    listeners who_;
    teller teller_;
    push_plan plan_;
    push_result result_;
    std::vector<sys::unique_fd> spares_; // of parts that were sent
};

} // namespace

asio::awaitable<push_result> run_push(std::shared_ptr<workshop> shop, push_request request,
                                      listeners who) {
    shop->account.require_configured();
    const key_lock lock = co_await key_lock::take(*shop, request.key);
    pushing operation(shop, std::move(request), std::move(who));
    try {
        co_return co_await operation.run();
    } catch (const std::system_error& problem) {
        if (problem.code().category() != std::generic_category()) throw;
        throw_host_trouble(problem, "reading what is to be sent");
    }
}

} // namespace sandboxd::sync
