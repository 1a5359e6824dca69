// Half surrogates in JSON text: what a foreign server sends must not break what we send on.
#pragma once

#include <string>
#include <string_view>

namespace sandboxd::cloud {

// The `\uXXXX` escapes of one JSON text, with each surrogate that has no partner turned into
// \ufffd. JSON's grammar allows them (RFC 8259, 8.2), servers that count in UTF-16 cut between
// them, and strict parsers refuse them.
std::string repair_surrogate_escapes(std::string_view json);

} // namespace sandboxd::cloud
