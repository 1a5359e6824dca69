#include "serve.hpp"

#include "base/cancellation.hpp"
#include "exec/inside_probe.hpp"
#include "exec/registry.hpp"
#include "rpc/server.hpp"
#include "rpc/services.hpp"
#include "sandbox/account.hpp"
#include "sandbox/manager.hpp"
#include "store/instance.hpp"
#include "store/state_store.hpp"
#include "sync/service.hpp"
#include "sys/listener.hpp"
#include "sys/lock.hpp"
#include "sys/logging.hpp"
#include "sys/memory.hpp"
#include "sys/notify.hpp"
#include "sys/version.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <sys/resource.h>

#include <csignal>
#include <utility>

namespace sandboxd {
namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds farewell{
    1000}; // for clients to read what is pending when the daemon stops

// A daemon without a request for so long, or up to twice as long, gives its memory back.
constexpr std::chrono::seconds quiet{10};

// A socket that vanished is back after so long.
constexpr std::chrono::seconds look_at_socket{5};

// Nothing in the background may end but by being told to.
void must_not_fail(std::exception_ptr problem) {
    if (!is_cancellation(problem)) {
        std::rethrow_exception(problem);
    }
}

// A client takes one, and its command another; the usual soft limit is for programs that select().
void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &limit);
    }
}

// Waits without a timer once it rests.
asio::awaitable<void> rest_when_quiet(rpc::services& parts) {
    asio::steady_timer pause(co_await asio::this_coro::executor);
    for (;;) {
        std::uint64_t seen = 0;
        do {
            seen = parts.requests;
            pause.expires_after(quiet);
            co_await pause.async_wait(asio::use_awaitable);
        } while (parts.requests != seen || parts.execs.running() > 0);
        sys::give_back_memory();
        co_await parts.asked.wait();
    }
}

// Clients that come anew need the socket's file; the lock keeps any other daemon from taking over.
asio::awaitable<void> stay_reachable(sys::listener& listener, rpc::services& parts,
                                     rpc::server& server) {
    asio::steady_timer pause(co_await asio::this_coro::executor);
    std::string told;
    for (;;) {
        pause.expires_after(look_at_socket);
        co_await pause.async_wait(asio::use_awaitable);
        if (parts.stopping) {
            co_return;
        }
        if (listener.reachable()) {
            continue;
        }
        try {
            listener.bind_again(parts.state_dir);
            server.move_to(listener.release_fd());
            parts.socket = listener.path();
            told.clear();
            spdlog::warn("the socket was removed; listening on {}", listener.path().string());
        } catch (const std::exception& problem) {
            if (std::exchange(told, problem.what()) != problem.what()) {
                spdlog::error("the socket {} was removed, and no client can connect: {}",
                              listener.path().string(), problem.what());
            }
        }
    }
}

asio::awaitable<void> stop_when_told(asio::io_context& context, asio::signal_set& signals,
                                     rpc::services& parts, rpc::server& server,
                                     const sys::notifier& manager,
                                     asio::cancellation_signal& stop_background) {
    const int signal = co_await signals.async_wait(asio::use_awaitable);
    spdlog::info("stopping ({}); sandboxes stay as they are, and commands in them run on",
                 signal == SIGTERM ? "SIGTERM" : "SIGINT");
    manager.stopping("stopping");
    parts.stopping = true;
    stop_background.emit(asio::cancellation_type::terminal);
    parts.files.stop();
    server.stop(farewell);
    asio::steady_timer poll(context);
    for (const auto until = std::chrono::steady_clock::now() + farewell;
         !server.drained() && std::chrono::steady_clock::now() < until;) {
        poll.expires_after(std::chrono::milliseconds(5));
        co_await poll.async_wait(asio::use_awaitable);
    }
    context.stop();
}

} // namespace

int serve(const sys::settings& settings) {
    sys::share_one_heap();
    raise_descriptor_limit();
    sys::init_logging(settings.level);
    const sys::notifier service_manager = sys::notifier::from_environment();
    for (const std::string& notice : settings.notices) {
        spdlog::warn("{}", notice);
    }
    const auto started_at = std::chrono::steady_clock::now();

    // The lock before anything else is touched.
    const sys::instance_lock lock(settings.state_dir);
    const store::instance self =
        store::load_instance(settings.state_dir, store::hashed_machine_id());

    asio::io_context context(1);
    const asio::any_io_executor executor = context.get_executor();
    asio::signal_set signals(context, SIGTERM, SIGINT);
    std::signal(SIGPIPE, SIG_IGN);

    store::state_store store(executor, settings.state_dir);
    store::loaded_state loaded = store.load();
    loaded.complaints.insert(loaded.complaints.begin(), self.complaints.begin(),
                             self.complaints.end());
    for (const std::string& complaint : loaded.complaints) {
        spdlog::error("{}", complaint);
    }

    sys::listener listener = sys::listener::open(settings.socket, settings.state_dir);
    if (!listener.trouble().empty()) {
        spdlog::error("{}: clients that look there for the socket do not find it",
                      listener.trouble());
    }
    sandbox::account account(executor, settings.base_url, settings.api_key, settings.state_dir);
    sandbox::manager manager(
        executor, account, store,
        {.instance = self.id,
         .fresh_instance = self.fresh,
         .plan = settings.plan,
         .idle_stop = settings.idle_stop,
         .background_max = settings.background_max,
         .orphan_grace = settings.orphan_grace,
         .retention = settings.retention,
         .budget_per_day = settings.budget_per_day,
         .server_timeout = std::chrono::ceil<std::chrono::seconds>(settings.server_timeout),
         .slots = {.max_active = settings.max_active,
                   .evict_min_idle = settings.evict_min_idle,
                   .timeout = settings.queue_timeout}});
    sync::service files(executor, manager, account, settings.state_dir);
    files.sweep(loaded.state.records);
    manager.adopt(std::move(loaded.state));
    core::exec_limits limits;
    limits.refused = settings.queue_timeout;
    exec::registry execs(executor, manager, account,
                         {.limits = limits,
                          .stop_if_unkillable = settings.stop_if_unkillable,
                          .state_dir = settings.state_dir,
                          .marks = &files,
                          .shims = {.spool_grace = settings.spool_grace}});
    exec::inside_probe inside(executor, account, execs.shims());
    manager.look_inside_with(inside);
    rpc::services parts{.account = account,
                        .manager = manager,
                        .execs = execs,
                        .files = files,
                        .instance = self.id,
                        .socket = listener.path(),
                        .state_dir = settings.state_dir,
                        .max_active = settings.max_active,
                        .started_at = started_at,
                        .complaints = std::move(loaded.complaints),
                        .asked = condition(executor)};
    rpc::server server(executor, listener.release_fd(), parts);

    execs.restore();
    asio::cancellation_signal stop_background;
    asio::co_spawn(context, manager.run(),
                   asio::bind_cancellation_slot(stop_background.slot(), must_not_fail));
    asio::co_spawn(context, server.run(), must_not_fail);
    asio::co_spawn(context, rest_when_quiet(parts), must_not_fail);
    if (!listener.from_systemd()) {
        asio::co_spawn(context, stay_reachable(listener, parts, server), must_not_fail);
    }
    asio::co_spawn(
        context, stop_when_told(context, signals, parts, server, service_manager, stop_background),
        must_not_fail);

    spdlog::info(
        "deepinfra-sandboxd {} is ready on {} ({})", sys::version(), listener.path().string(),
        account.configured() ? account.base_url() : account.base_url() + ", no API key yet");
    service_manager.ready(account.configured() ? "ready" : "ready; no API key yet");
    context.run();
    return 0;
}

} // namespace sandboxd
