// The command line as a whole: which verb, help, version, errors and exit codes.
#pragma once

#include "sys/settings.hpp"

#include <string>
#include <vector>

namespace sandboxd::cli {

// What `serve` does once it has its settings; answers the process's exit code.
using serve_function = int (*)(const sys::settings&);

// `arguments` without the program's name. Answers the exit code; throws nothing that is to be
// expected.
int run(const std::vector<std::string>& arguments, const sys::environment& env,
        serve_function serve);

} // namespace sandboxd::cli
