// What start, stop and terminate share: which sandbox, and how the answer is shown.
#pragma once

#include "cli/verb.hpp"

namespace sandboxd::cli {

// {"id"} or {"key"} from ID, --task, --profile. Throws usage_error unless exactly one way is used:
// nothing is stopped or terminated by default.
json::object chosen_sandbox(const arguments&, std::string_view verb);

// --task and --profile.
const std::vector<flag>& choosing_flags();

// Calls `method`, shows on a terminal what is being waited for, and prints the result.
json::object call_with_progress(const context&, std::string_view method, json::object params);

} // namespace sandboxd::cli
