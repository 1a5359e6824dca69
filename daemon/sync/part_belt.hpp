// The parts of one archive between the thread that makes them and the coroutine that sends them, so
// that neither waits for the other while there is something to do.
//
// At most three exist at a time: one is sent, one waits, one is made. Owned by one push; both
// coroutines end before this does.
#pragma once

#include "base/condition.hpp"
#include "sync/archive_writer.hpp"
#include "sync/part_writer.hpp"
#include "sync/workshop.hpp"

#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

namespace sandboxd::sync {

struct made_part {
    part content;
    std::vector<std::size_t> torn; // members so far that changed while they were read
    bool last = false;
};

class part_belt {
public:
    // `spares`: descriptors of parts that were sent, to be written over.
    part_belt(std::shared_ptr<workshop> shop, archive_writer& archive,
              std::vector<sys::unique_fd>& spares)
        : shop_(std::move(shop)), archive_(archive), spares_(spares), changed_(shop_->executor) {}

    // Makes all of them, or as many as are wanted. What goes wrong comes out of take().
    boost::asio::awaitable<void> make(std::uint64_t size_of_first);
    // The next one; nothing after the last.
    boost::asio::awaitable<std::optional<made_part>> take();
    void no_more_wanted();

private:
    boost::asio::awaitable<std::optional<made_part>> next(std::uint64_t size);

    std::shared_ptr<workshop> shop_;
    archive_writer& archive_;
    std::vector<sys::unique_fd>& spares_;
    condition changed_;
    std::optional<made_part> waiting_;
    std::exception_ptr trouble_;
    bool all_made_ = false;
    bool wanted_ = true;
};

} // namespace sandboxd::sync
