#include "exec/shim_keeper.hpp"

#include "base/id.hpp"
#include "core/shim_command.hpp"
#include "shim/shim_binary.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace sandboxd::exec {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds install_limit{60}; // the platform's clock for it
constexpr int answered = 200;
constexpr std::size_t most_told =
    1024; // of one sandbox; what is forgotten beyond that stays in the sandbox for a day

constexpr std::uint64_t sandbox_spool = 1U << 30;   // bytes, all commands of a sandbox together
constexpr std::uint64_t largest_spool = 256U << 20; // bytes, of one

std::chrono::milliseconds now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
}

// It passes, or so it is hoped: whoever asked may ask again. `status`: 0 where nothing was
// answered.
cloud::failure not_in_place(const std::string& why, int status = 0) {
    return {cloud::failure_kind::unreachable, status, "the shim could not be put in place: " + why,
            std::nullopt};
}

install_outcome outcome_of(core::shim_presence::finding found) {
    install_outcome outcome;
    switch (found.what) {
    case core::shim_presence::verdict::works:
        outcome.installed = true;
        break;
    case core::shim_presence::verdict::unusable:
        outcome.unusable = std::move(found.why);
        break;
    case core::shim_presence::verdict::failed:
        outcome.failure = not_in_place(found.why, answered);
        break;
    }
    return outcome;
}

} // namespace

shim_keeper::shim_keeper(asio::any_io_executor executor, sandbox::account& account,
                         keeper_options options)
    : executor_(std::move(executor)), account_(account), options_(options),
      path_(core::shim_path(shim::hash().substr(0, 16))) {}

shim_keeper::place& shim_keeper::at(const std::string& sandbox_id) {
    std::shared_ptr<place>& slot = places_[sandbox_id];
    if (!slot) {
        slot = std::make_shared<place>(executor_, options_.look_again);
    }
    return *slot;
}

asio::awaitable<install_outcome> shim_keeper::install(std::string sandbox_id) {
    at(sandbox_id);
    const std::shared_ptr<place> here = places_.at(sandbox_id);
    if (here->installing) {
        while (here->installing) {
            co_await here->changed.wait();
        }
        co_return here->last;
    }
    // Whoever waits must be woken whatever happens to this coroutine, so the flag goes with its
    // frame.
    struct guard {
        place& of;
        explicit guard(place& installing) : of(installing) { of.installing = true; }
        guard(const guard&) = delete;
        guard& operator=(const guard&) = delete;
        ~guard() {
            of.installing = false;
            of.changed.notify_all();
        }
    };
    here->last = {};
    here->last.failure = not_in_place("the installation was given up");
    const guard installing(*here);
    install_outcome outcome = co_await install_in_time(sandbox_id);
    here->last = outcome;
    co_return outcome;
}

asio::awaitable<install_outcome> shim_keeper::install_in_time(std::string sandbox_id) {
    using namespace asio::experimental::awaitable_operators;
    asio::steady_timer patience(executor_, options_.install);
    auto first = co_await (put_and_probe(sandbox_id) || patience.async_wait(asio::use_awaitable));
    if (first.index() == 0) {
        co_return std::move(std::get<0>(first));
    }
    install_outcome late;
    late.failure = not_in_place("the sandbox did not answer in time");
    co_return late;
}

asio::awaitable<install_outcome> shim_keeper::put_and_probe(std::string sandbox_id) {
    install_outcome outcome;
    const std::string uploaded = path_ + ".tmp-" + random_hex(4);
    const auto put = account_.observe(
        co_await account_.cloud().put_content(sandbox_id, uploaded, std::string(shim::binary())));
    if (!put.has_value()) {
        outcome.failure = put.error();
        co_return outcome;
    }
    auto sent = co_await account_.cloud().exec(sandbox_id, core::shim_install(uploaded, path_),
                                               install_limit);
    account_.observe(sent);
    if (!sent.has_value()) {
        outcome.failure = sent.error();
        co_return outcome;
    }
    const std::unique_ptr<cloud::exec_stream> stream = std::move(*sent);
    std::optional<std::string> lacks;
    const auto take = [&](core::shim_frame& frame) {
        const auto* note = std::get_if<core::shim_note>(&frame);
        if (note != nullptr && note->name == "probe") {
            lacks = core::missing_in(*note);
        }
        return !lacks;
    };
    const shim_words words = co_await read_shim(*stream, take);
    core::shim_presence& presence = at(sandbox_id).presence;
    if (lacks) {
        co_return outcome_of(presence.on_probe(now(), *lacks));
    }
    if (const auto* cut = std::get_if<cloud::exec_cut>(&*words.end)) {
        outcome.failure = cut->why;
    } else if (const auto* exited = std::get_if<cloud::exec_exited>(&*words.end)) {
        co_return outcome_of(presence.on_exited(now(), exited->returncode, words.said));
    } else if (const auto* refused = std::get_if<cloud::exec_refused>(&*words.end)) {
        outcome.failure = not_in_place(refused->message, answered);
    }
    co_return outcome;
}

asio::awaitable<shim_reply> shim_keeper::call(std::string sandbox_id, std::vector<std::string> argv,
                                              std::string wanted, std::chrono::milliseconds more) {
    const std::chrono::milliseconds patience = options_.answer + more;
    shim_reply reply = co_await call_shim(executor_, account_, sandbox_id, argv, wanted, patience);
    if (reply.silent()) {
        const install_outcome put_back = co_await install(sandbox_id);
        if (put_back.installed) {
            reply = co_await call_shim(executor_, account_, sandbox_id, argv, wanted, patience);
        }
    }
    co_return reply;
}

void shim_keeper::note_use(const std::string& sandbox_id, std::uint64_t generation) {
    place& here = at(sandbox_id);
    here.presence.on_use(generation, now());
    if (std::exchange(here.generation, generation) != generation) {
        here.reserved = std::make_shared<std::uint64_t>(0);
    }
}

bool shim_keeper::may_be_there(const std::string& sandbox_id) const {
    const auto found = places_.find(sandbox_id);
    return found == places_.end() || found->second->presence.may_be_there();
}

std::optional<std::string> shim_keeper::unusable(const std::string& sandbox_id) const {
    const auto found = places_.find(sandbox_id);
    if (found == places_.end() || found->second->presence.unusable().empty()) {
        return std::nullopt;
    }
    return found->second->presence.unusable();
}

std::map<std::string, std::string> shim_keeper::all_unusable() const {
    std::map<std::string, std::string> all;
    for (const auto& [sandbox_id, here] : places_) {
        if (!here->presence.unusable().empty()) {
            all.emplace(sandbox_id, here->presence.unusable());
        }
    }
    return all;
}

void shim_keeper::set_unusable(const std::string& sandbox_id, std::string why) {
    spdlog::warn("sandbox {}: commands run without the shim: {}", sandbox_id, why);
    at(sandbox_id).presence.on_unusable(now(), std::move(why));
}

void shim_keeper::runner_gone(const std::string& sandbox_id) {
    ++at(sandbox_id).runners_gone;
}

std::map<std::string, std::size_t> shim_keeper::runners_gone() const {
    std::map<std::string, std::size_t> all;
    for (const auto& [sandbox_id, each] : places_) {
        if (each->runners_gone != 0) {
            all.emplace(sandbox_id, each->runners_gone);
        }
    }
    return all;
}

void shim_keeper::told(const std::string& sandbox_id, const std::string& exec_id) {
    std::vector<std::string>& ids = at(sandbox_id).told;
    if (ids.size() < most_told) {
        ids.push_back(exec_id);
    }
}

std::vector<std::string> shim_keeper::take_told(const std::string& sandbox_id) {
    std::vector<std::string>& ids = at(sandbox_id).told;
    const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(ids.size(), 16));
    std::vector<std::string> taken(ids.begin(), ids.begin() + count);
    ids.erase(ids.begin(), ids.begin() + count);
    return taken;
}

void shim_keeper::release_output(const std::string& sandbox_id, const std::string& exec_id,
                                 std::uint64_t pos) {
    asio::co_spawn(
        executor_,
        [this, sandbox_id,
         argv = core::shim_acknowledge(path(), exec_id, pos)]() -> asio::awaitable<void> {
            const shim_reply reply = co_await call(sandbox_id, argv, "acked");
            if (reply.failure) {
                spdlog::debug("sandbox {}: {}", sandbox_id, reply.failure->message);
            }
        },
        asio::detached);
}

spool_share shim_keeper::share_of_spool(const std::string& sandbox_id) {
    const std::shared_ptr<std::uint64_t>& reserved = at(sandbox_id).reserved;
    const std::uint64_t left = sandbox_spool - std::min(*reserved, sandbox_spool);
    return {reserved, std::clamp(left / 4, smallest_spool, largest_spool)};
}

} // namespace sandboxd::exec
