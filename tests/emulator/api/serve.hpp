// The life of one connection: request after request, each recorded, disturbed by the fault ordered
// for it, authorised, handled.
#pragma once

#include "api/call.hpp"

namespace emulator::api {

// Ends when the connection does. With `control_only` the API itself is not served here.
task<void> serve_connection(world& all, std::shared_ptr<http::connection> connection,
                            bool control_only);

} // namespace emulator::api
