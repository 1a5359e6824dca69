// A call that begins to unpack an archive while its parts still come, so that neither the line nor
// the sandbox waits for the other.
//
// Nothing depends on it: the call that is made once all parts are there waits for it in the
// sandbox, has the answer that was kept there, and goes on where it was cut off. Owned by the
// transfer; it hangs up when it goes, whatever has become of the call.
#pragma once

#include "sync/sandbox_side.hpp"

#include <boost/asio/any_io_executor.hpp>

#include <memory>

namespace sandboxd::sync {

class head_start {
public:
    head_start(const boost::asio::any_io_executor& executor, sandbox_side there,
               json::object order);
    head_start(const head_start&) = delete;
    head_start& operator=(const head_start&) = delete;
    ~head_start();

    // Throws if it has ended for want of room, which nothing else that is sent would find either.
    void check() const;

private:
    struct state;
    std::shared_ptr<state> state_; // the call's too
};

} // namespace sandboxd::sync
