#include "store/state_store.hpp"

#include "base/condition.hpp"
#include "store/quarantine.hpp"
#include "sys/file.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <system_error>
#include <utility>

namespace sandboxd::store {
namespace asio = boost::asio;

// Lives on the daemon's thread but for `pool`, which only ever runs one atomic_write with arguments
// of its own.
struct state_store::shared {
    explicit shared(asio::any_io_executor executor) : changed(std::move(executor)) {}

    asio::thread_pool pool{1};
    condition changed;
    std::optional<std::string> next; // text still to be written
    bool writing = false;
    std::uint64_t asked = 0;   // number of the newest save
    std::uint64_t settled = 0; // newest save whose write has ended, well or not
    std::string trouble;
};

state_store::state_store(asio::any_io_executor executor, std::filesystem::path directory)
    : shared_(std::make_shared<shared>(std::move(executor))), directory_(std::move(directory)),
      keys_(directory_) {}

state_store::~state_store() {
    shared_->pool.join();
}

const std::string& state_store::trouble() const noexcept {
    return shared_->trouble;
}

loaded_state state_store::load() {
    const std::filesystem::path file = directory_ / "state.json";
    loaded_state loaded;
    keys_.load();
    const std::optional<std::string> text = sys::read_file(file);
    if (!text) {
        return loaded;
    }
    try {
        parsed_state parsed = parse_state(*text);
        loaded.state = std::move(parsed.state);
        if (!parsed.rejected.empty()) {
            // The rest is used, but what could not be read must not be overwritten unseen.
            const std::filesystem::path kept = aside_name(file, ".partly-bad");
            sys::atomic_write(kept, *text);
            for (const std::string& reason : parsed.rejected) {
                loaded.complaints.push_back("state.json: " + reason +
                                            "; the file as it was is kept as " + kept.string());
            }
        }
    } catch (const unreadable_state& problem) {
        loaded.complaints.push_back("state.json could not be read (" + std::string(problem.what()) +
                                    ") and was kept as " + keep_aside(file).string() +
                                    "; sandboxes it knew may still be running");
    }
    return loaded;
}

asio::awaitable<void> state_store::save(saved_state what) {
    const std::shared_ptr<shared> state = shared_;
    for (const core::sandbox_record& record : what.records) {
        if (record.persistent) { // another is never adopted, and its key never comes again
            keys_.add(record.key);
        }
    }
    state->next = format_state(what);
    const std::uint64_t mine = ++state->asked;
    while (state->settled < mine) {
        if (state->writing) {
            co_await state->changed.wait();
            continue;
        }
        state->writing = true;
        const std::uint64_t writing = state->asked;
        const std::string text = *std::exchange(state->next, std::nullopt);
        std::string trouble;
        const std::filesystem::path file = directory_ / "state.json";
        const auto write = [&]() -> asio::awaitable<void> {
            try {
                sys::atomic_write(file, text);
            } catch (const std::exception& problem) {
                trouble = problem.what();
            }
            co_return;
        };
        co_await asio::co_spawn(state->pool, write, asio::use_awaitable);
        state->trouble = std::move(trouble);
        state->writing = false;
        state->settled = writing;
        state->changed.notify_all();
    }
    if (!state->trouble.empty()) {
        throw std::runtime_error(state->trouble);
    }
}

} // namespace sandboxd::store
