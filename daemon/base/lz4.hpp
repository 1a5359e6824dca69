// What was packed into an LZ4 block, by whom ever. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd {

// Nothing: it is no such block, or unpacks to something else than `size` bytes. Never takes more
// memory than that.
std::optional<std::string> lz4_unpacked(std::string_view block, std::size_t size);

} // namespace sandboxd
