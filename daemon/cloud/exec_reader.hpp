// The answer of one exec as a stream of events.
#pragma once

#include "base/secret.hpp"
#include "cloud/client.hpp"
#include "cloud/connection.hpp"
#include "cloud/exchange.hpp"
#include "cloud/pool.hpp"

#include <memory>

namespace sandboxd::cloud {

// `from` with `reader` is past the header of a 200. Owns the connection until the terminal line;
// then the rest of the HTTP body is read in the background, for a short while, and the connection
// goes to `home`.
std::unique_ptr<exec_stream> make_exec_stream(std::shared_ptr<pool> home,
                                              std::shared_ptr<connection> from,
                                              std::unique_ptr<answer_reader> reader,
                                              std::size_t max_line, secret key);

} // namespace sandboxd::cloud
