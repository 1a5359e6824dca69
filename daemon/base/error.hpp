// The one kind of error that reaches a client.
//
// An rpc_error carries a name from protocol/errors.json; programs act on the name, people read the
// text. It is thrown inside the daemon and turned into a JSON-RPC error object at the edge (rpc/).
// Its text never holds a secret: whoever builds it from a cloud answer takes the answer's own
// message, not its headers.
#pragma once

#include "protocol/errors.gen.hpp"

#include <optional>
#include <stdexcept>
#include <string>

namespace sandboxd {

class rpc_error : public std::runtime_error {
public:
    // `message`: what happened, in one sentence. The hint and the retryable flag default to those
    // of the name.
    rpc_error(error_name name, const std::string& message);
    rpc_error(error_name name, const std::string& message, std::string hint);

    error_name name() const noexcept { return name_; }
    const std::string& hint() const noexcept { return hint_; }
    bool retryable() const noexcept { return info(name_).retryable; }

    // The cloud's id of the sandbox concerned, if there is one.
    std::optional<std::string> sandbox_id;

private:
    error_name name_;
    std::string hint_;
};

} // namespace sandboxd
