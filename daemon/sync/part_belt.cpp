#include "sync/part_belt.hpp"

#include <utility>

namespace sandboxd::sync {
namespace asio = boost::asio;

asio::awaitable<void> part_belt::make(std::uint64_t size_of_first) {
    try {
        std::optional<made_part> made = co_await next(size_of_first);
        while (made) {
            while (waiting_ && wanted_)
                co_await changed_.wait();
            if (!wanted_) break;
            const bool last = made->last;
            waiting_ = std::move(made);
            made.reset();
            changed_.notify_all();
            if (!last) made = co_await next(shop_->upload.part_size());
        }
    } catch (...) {
        trouble_ = std::current_exception();
    }
    all_made_ = true;
    changed_.notify_all();
}

asio::awaitable<std::optional<made_part>> part_belt::take() {
    while (!waiting_ && !all_made_)
        co_await changed_.wait();
    std::optional<made_part> taken = std::exchange(waiting_, std::nullopt);
    if (!taken && trouble_) std::rethrow_exception(trouble_);
    changed_.notify_all();
    co_return taken;
}

void part_belt::no_more_wanted() {
    wanted_ = false;
    changed_.notify_all();
}

asio::awaitable<std::optional<made_part>> part_belt::next(std::uint64_t size) {
    if (!spares_.empty()) {
        archive_.recycle(std::move(spares_.back()));
        spares_.pop_back();
    }
    const double rate = shop_->upload.rate();
    std::optional<part> content =
        co_await shop_->on_its_own([&] { return archive_.next(size, rate); });
    std::optional<made_part> made;
    if (content) {
        made.emplace();
        made->content = std::move(*content);
        made->last = archive_.ended();
        const std::vector<sent_member>& members = archive_.members();
        for (std::size_t i = 0; i < members.size(); ++i) {
            if (members[i].torn) made->torn.push_back(i);
        }
    }
    co_return made;
}

} // namespace sandboxd::sync
