// The sandbox's side of one transfer: parts up and down, and calls of the helper in it.
//
// Owned by the operation; the sandbox is held by the operation's lease as long as this is used.
// Each step may be repeated after a lost answer, so lost connections and the platform's moods are
// waited out here: lost connections for minutes, moods for half a one. What is left comes out as
// rpc_error.
#pragma once

#include "base/error.hpp"
#include "sandbox/account.hpp"
#include "sandbox/manager.hpp"
#include "sync/helper.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sync {

// What the operation had in the sandbox is not there any more, and so it is not done. Beginning it
// anew helps.
class parts_lost : public rpc_error {
public:
    explicit parts_lost(const rpc_error& why) : rpc_error(why) {}
};

// The platform says that the sandbox is not running, or not there: it has to be looked at, and the
// transfer begun anew.
class sandbox_lost : public rpc_error {
public:
    explicit sandbox_lost(const rpc_error& why) : rpc_error(why) {}
};
// It is said once more of a sandbox that was found running meanwhile. Of a file that cannot be made
// the platform says the same as of a sandbox that is not there.
[[noreturn]] void throw_lost_again(const sandbox_lost& why);
// Somebody has wanted just that: what he has stopped or deleted is not brought back for a transfer.
void throw_if_overruled(const sandbox::lease& held, const sandbox_lost& why);

class sandbox_side {
public:
    sandbox_side(boost::asio::any_io_executor executor, sandbox::account& account,
                 std::string sandbox_id, std::string operation)
        : executor_(std::move(executor)), account_(account), sandbox_id_(std::move(sandbox_id)),
          operation_(std::move(operation)) {}

    const std::string& operation() const noexcept { return operation_; }

    // Part `number` from `fd`, `size` bytes from its beginning. `gone` tells how many have gone.
    // `live`: operations of which nothing may be swept to make room.
    boost::asio::awaitable<void> put_part(std::size_t number, int fd, std::uint64_t size,
                                          std::uint64_t& gone, std::vector<std::string> live);
    // ... and into `fd`; it must be of exactly that size.
    boost::asio::awaitable<void> get_part(std::size_t number, int fd, std::uint64_t size,
                                          std::uint64_t& come);
    // The members that are not to be unpacked, as far as that is known when part `number` is to be
    // sent.
    boost::asio::awaitable<void> put_torn(std::size_t number, std::vector<std::size_t> members,
                                          std::vector<std::string> live);
    // The helper's answer, `error` taken out of it and thrown.
    boost::asio::awaitable<json::object> call(std::string verb, json::object arguments);
    // One try of a call whose answer another one will have; its `error`, if there is one.
    boost::asio::awaitable<std::optional<helper_error>> attempt(std::string verb,
                                                                json::object arguments);
    [[noreturn]] void fail(const helper_error& error) const; // throws it, for people
    // Takes away what the operation has there. One try, as the next operation would do it too.
    boost::asio::awaitable<void> drop(std::vector<std::string> live);

private:
    struct outcome;
    struct upload;
    boost::asio::awaitable<void> insist(upload what);
    // `sweep`: the arguments of that verb, should room be wanted.
    boost::asio::awaitable<void> put_text(std::string path, std::string text, json::object sweep);
    // The bytes that are free once what nobody needs has gone; nothing if that could not be done.
    boost::asio::awaitable<std::optional<std::uint64_t>> make_room(json::object arguments);
    boost::asio::awaitable<outcome> call_once(const std::vector<std::string>& argv);
    // The arguments, or if they are long, where in the sandbox they are by then.
    boost::asio::awaitable<std::string> given(std::string path, json::object arguments);
    // Throw, with the sandbox's id.
    [[noreturn]] void fail(const rpc_error& error) const;
    [[noreturn]] void fail(const cloud::failure& failure, std::string_view doing) const;

    boost::asio::any_io_executor executor_;
    sandbox::account& account_;
    std::string sandbox_id_;
    std::string operation_;
};

} // namespace sandboxd::sync
