#include "base/error.hpp"

namespace sandboxd {

rpc_error::rpc_error(error_name name, const std::string& message)
    : rpc_error(name, message, std::string(info(name).hint)) {}

rpc_error::rpc_error(error_name name, const std::string& message, std::string hint)
    : std::runtime_error(message), name_(name), hint_(std::move(hint)) {}

} // namespace sandboxd
