// What goes on in a sandbox that no client waits for: whether it is known, and what it is.
#pragma once

namespace sandboxd::core {

enum class background {
    not_asked, // since it was last used, or too long ago
    none,
    running,
    unknown, // nobody there can tell: the sandbox has no shim
    failed,  // the question got no answer; another one may
};

} // namespace sandboxd::core
