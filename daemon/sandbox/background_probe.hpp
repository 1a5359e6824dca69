// What the manager asks about the inside of a running sandbox. Implemented in exec/, which knows
// the shim.
#pragma once

#include "core/background.hpp"

#include <boost/asio/awaitable.hpp>

#include <string>

namespace sandboxd::sandbox {

struct background_answer {
    core::background what = core::background::unknown;
    std::string text; // for people: what runs, or why it is not known
};

class background_probe {
public:
    virtual ~background_probe() = default;
    // What runs there that no client of this daemon waits for. Never throws but when cancelled.
    virtual boost::asio::awaitable<background_answer> ask(std::string sandbox_id) = 0;
    // Lets a call finish there, unless commands of that sandbox do so by themselves, so that the
    // platform does not take it for idle.
    virtual boost::asio::awaitable<void> keep_awake(std::string sandbox_id) = 0;
};

} // namespace sandboxd::sandbox
