// push and put: see service.hpp.
//
// Rounds: what has to go is read into an archive, part by part, each part is sent while the next is
// read, and one call in the sandbox puts everything in place. A second round takes what changed
// while it was read, and what turns out to be missing because its tree was removed meanwhile.
#include "base/error.hpp"
#include "base/id.hpp"
#include "sync/archive_writer.hpp"
#include "sync/path.hpp"
#include "sync/sandbox_side.hpp"
#include "sync/workshop.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <set>
#include <system_error>

namespace sandboxd::sync {
namespace asio = boost::asio;

namespace {

constexpr int most_rounds = 4;
constexpr std::uint64_t first_part = 8U << 20; // nothing is sent before it is made

class pushing {
public:
    pushing(std::shared_ptr<workshop> shop, push_request request, listeners who)
        : shop_(std::move(shop)), request_(std::move(request)), who_(std::move(who)) {}

    asio::awaitable<push_result> run() {
        tell("preparing", 0, std::nullopt);
        found_ =
            co_await shop_->elsewhere([this] { return scan(request_.files, shop_->stopping); });
        result_.skipped = found_.skipped;
        if (const auto record = shop_->known(request_.key)) {
            co_await recall(record->sandbox_id);
            if (todo_.empty()) co_return co_await finish();
        } else if (found_.entries.empty()) {
            co_return std::move(result_);
        }
        for (bool last = false;; last = true) {
            const sandbox::lease lease = co_await shop_->manager.acquire(
                request_.key, request_.want, "fs.push-" + random_hex(4), who_.on_sandbox);
            if (result_.sandbox_id != lease.record().sandbox_id) {
                co_await recall(lease.record().sandbox_id);
            }
            try {
                co_await send_all();
                co_return co_await finish();
            } catch (const sandbox_lost&) {
                if (last) throw;
            }
            shop_->manager.distrust(request_.key);
            result_.sandbox_id.clear();
        }
    }

private:
    void tell(std::string_view phase, std::uint64_t done, std::optional<std::uint64_t> total) {
        if (who_.on_transfer) who_.on_transfer({phase, done, total});
    }

    // What that sandbox has, and what it lacks.
    asio::awaitable<void> recall(std::string sandbox_id) {
        result_.sandbox_id = std::move(sandbox_id);
        result_.skipped = found_.skipped;
        placed_.clear();
        given_up_.clear();
        remembered_ = co_await shop_->load(result_.sandbox_id);
        co_await select();
    }

    asio::awaitable<void> select() {
        todo_ = co_await shop_->elsewhere([this] { return missing_there(); });
    }

    // On another thread.
    std::vector<local_entry> missing_there() {
        std::vector<local_entry> missing;
        result_.unchanged = 0;
        for (const local_entry& each : found_.entries) {
            if (shop_->stopping) break;
            if (placed_.contains(each.remote) || given_up_.contains(each.remote)) continue;
            if (!is_unchanged(each)) {
                missing.push_back(each);
            } else if (each.kind != file_kind::directory) {
                ++result_.unchanged;
            }
        }
        return missing;
    }

    bool is_unchanged(const local_entry& each) {
        if (request_.force || !request_.remember) return false;
        const manifest_entry* known = remembered_.find(each.remote);
        const verdict first = compare(known, each);
        if (first != verdict::look) return first == verdict::unchanged;
        file_print print = each.print;
        std::string content;
        const std::int64_t looked_at = wall_clock();
        if (each.kind == file_kind::link) {
            digest target;
            target.add(each.link);
            content = target.take();
        } else {
            try {
                std::optional<content_now> now = digest_of_file(each.host);
                if (!now) return false;
                content = std::move(now->digest);
                print = now->print;
            } catch (const std::system_error&) {
                return false; // the archive will name it
            }
        }
        if (content != known->digest) return false;
        manifest_entry touched = *known;
        touched.print = print;
        touched.doubtful = is_doubtful(print, looked_at);
        if (!(touched == *known)) {
            remembered_.entries.insert_or_assign(each.remote, std::move(touched));
            remembered_changed_ = true;
        }
        return true;
    }

    asio::awaitable<void> send_all() {
        for (int round = 0; !todo_.empty() && round < most_rounds; ++round) {
            co_await forget_what_goes();
            co_await send_round();
        }
        for (const local_entry& each : todo_) {
            result_.skipped.push_back({each.host, each.remote, skip_reason::changing,
                                       "it changed each time it was read"});
        }
    }

    // A sandbox's file that may be half way between two states must not be remembered as either.
    asio::awaitable<void> forget_what_goes() {
        for (const local_entry& each : todo_) {
            const manifest_entry* known = remembered_.find(each.remote);
            if (known == nullptr) continue;
            remembered_changed_ = true;
            if (known->kind == file_kind::directory && each.kind != file_kind::directory) {
                remembered_.forget(each.remote);
            } else {
                remembered_.entries.erase(each.remote);
            }
        }
        co_await save();
    }

    asio::awaitable<void> send_round() {
        const operation_name operation(shop_, result_.sandbox_id);
        sandbox_side there(shop_->executor, shop_->account, result_.sandbox_id, operation.text());
        archive_writer archive(todo_, shop_->state, shop_->stopping);
        const std::size_t parts = co_await send_parts(archive, there);
        std::vector<std::size_t> torn;
        for (std::size_t i = 0; i < archive.members().size(); ++i) {
            if (archive.members()[i].torn) torn.push_back(i);
        }
        give_up_what_is_not_in(archive);
        if (archive.members().empty()) {
            todo_.clear();
            co_return;
        }
        tell("unpacking", archive.bytes(), archive.bytes());
        const std::vector<watched_root> roots = roots_of(archive.members());
        const std::vector<std::string> live = shop_->live_in(result_.sandbox_id);
        json::object asked = unpack_arguments(operation.text(), live, parts, torn, roots);
        const json::object said = co_await there.call("unpack", std::move(asked));
        const auto answer = parse_unpack(said, archive.members().size(), roots.size());
        if (!answer) {
            throw rpc_error(error_name::sync_failed, "the sandbox's answer makes no sense");
        }
        co_await note(archive.members(), *answer, roots);
    }

    // How many parts there were. Each is sent while the next one is made.
    asio::awaitable<std::size_t> send_parts(archive_writer& archive, sandbox_side& there) {
        using namespace asio::experimental::awaitable_operators;
        std::uint64_t total = 0;
        for (const local_entry& each : todo_)
            total += each.kind == file_kind::file ? each.print.size : 0;
        std::size_t sent = 0;
        std::uint64_t plain = 0; // bytes of the archive that are there
        std::optional<part> ready = co_await produce(archive, first_part);
        while (ready) {
            std::optional<part> next;
            std::exception_ptr trouble; // kept, as all have to come to their end
            std::uint64_t gone = 0;
            asio::steady_timer tick(shop_->executor);
            bool done = false;
            const auto send = [&]() -> asio::awaitable<void> {
                try {
                    co_await send_part(there, sent, *ready, gone);
                } catch (...) {
                    trouble = std::current_exception();
                }
                done = true;
                tick.cancel();
            };
            const auto make = [&]() -> asio::awaitable<void> {
                try {
                    next = co_await produce(archive, shop_->upload.part_size());
                } catch (...) {
                    if (!trouble) trouble = std::current_exception();
                }
            };
            const auto report = [&] {
                tell("sending", std::min(plain + ready->plain * gone / ready->size, total), total);
            };
            co_await (send() && make() && keep_telling(tick, done, report));
            if (trouble) std::rethrow_exception(trouble);
            report();
            plain += ready->plain;
            result_.wire_bytes += ready->size;
            ++sent;
            archive.recycle(std::move(ready->fd));
            ready = std::move(next);
        }
        co_return sent;
    }

    asio::awaitable<std::optional<part>> produce(archive_writer& archive, std::uint64_t size) {
        const double rate = shop_->upload.rate();
        co_return co_await shop_->elsewhere([&] { return archive.next(size, rate); });
    }

    asio::awaitable<void> send_part(sandbox_side& there, std::size_t number, const part& what,
                                    std::uint64_t& gone) {
        const auto begun = std::chrono::steady_clock::now();
        co_await there.put_part(number, what.fd.get(), what.size, gone);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        shop_->upload.took(what.size, took.count());
    }

    std::vector<watched_root> roots_of(const std::vector<sent_member>& members) const {
        std::vector<watched_root> roots;
        if (!request_.remember) return roots;
        std::set<std::string> paths;
        for (const sent_member& each : members)
            paths.insert(root_of(todo_[each.entry].remote));
        for (const std::string& path : paths) {
            const auto known = remembered_.roots.find(path);
            const bool is_new = known == remembered_.roots.end();
            roots.push_back({path, is_new ? std::string() : known->second, random_hex(8)});
        }
        return roots;
    }

    void give_up_what_is_not_in(const archive_writer& archive) {
        std::vector<bool> there(todo_.size());
        for (const sent_member& each : archive.members())
            there[each.entry] = true;
        for (std::size_t i = 0; i < todo_.size(); ++i) {
            if (!there[i]) given_up_.insert(todo_[i].remote);
        }
        result_.skipped.insert(result_.skipped.end(), archive.skipped().begin(),
                               archive.skipped().end());
    }

    // What is in place now, and what has to go in another round.
    asio::awaitable<void> note(const std::vector<sent_member>& members, const unpack_answer& answer,
                               const std::vector<watched_root>& roots) {
        bool again = false;
        for (const std::size_t i : answer.lost) {
            if (!roots[i].expect.empty()) { // somebody has removed the tree
                again = true;
                remembered_.forget_root(roots[i].path);
                std::erase_if(placed_, [&](const auto& each) {
                    return root_of(each.first) == roots[i].path;
                });
            }
            remembered_.roots[roots[i].path] = roots[i].token;
            remembered_changed_ = true;
        }
        std::map<std::size_t, const helper_failure*> failed;
        for (const helper_failure& each : answer.failed)
            failed.emplace(each.index, &each);
        for (std::size_t i = 0; i < members.size(); ++i) {
            const local_entry& entry = todo_[members[i].entry];
            const auto failure = failed.find(i);
            if (members[i].torn) {
                again = true;
            } else if (failure == failed.end()) {
                note_placed(entry, members[i].record);
            } else {
                given_up_.insert(entry.remote);
                result_.skipped.push_back(
                    {entry.host, entry.remote,
                     failure->second->in_the_way ? skip_reason::in_the_way : skip_reason::failed,
                     failure->second->text});
            }
        }
        todo_.clear();
        co_await save();
        if (again) co_await select();
    }

    void note_placed(const local_entry& entry, const manifest_entry& record) {
        placed_.insert_or_assign(entry.remote, record);
        if (request_.remember) {
            remembered_.entries.insert_or_assign(entry.remote, record);
            remembered_changed_ = true;
        }
    }

    asio::awaitable<void> save() {
        if (!remembered_changed_) co_return;
        remembered_changed_ = false;
        try {
            co_await shop_->save(result_.sandbox_id, remembered_);
        } catch (const std::system_error& problem) {
            throw_host_trouble(problem, "writing down what was sent");
        }
    }

    asio::awaitable<push_result> finish() {
        co_await save();
        for (const auto& [path, record] : placed_) {
            if (record.kind == file_kind::directory) continue;
            ++result_.sent;
            result_.bytes += record.print.size;
        }
        co_return std::move(result_);
    }

    std::shared_ptr<workshop> shop_;
    push_request request_;
    listeners who_;
    scanned found_;
    manifest remembered_;
    bool remembered_changed_ = false;
    std::vector<local_entry> todo_;
    std::map<std::string, manifest_entry> placed_; // by this very call
    std::set<std::string> given_up_;               // cannot be placed, and are named
    push_result result_;
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
