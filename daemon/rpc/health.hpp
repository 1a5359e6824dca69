// What a person should look at, gravest first: made from what the parts say of themselves.
#pragma once

#include "rpc/services.hpp"

#include <boost/json/array.hpp>

namespace sandboxd::rpc {

boost::json::array health_items(const services& parts);

} // namespace sandboxd::rpc
