#include "cli/verb.hpp"

#include "sys/lock.hpp"
#include "sys/options.hpp"

#include <boost/json/serialize.hpp>
#include <boost/program_options.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace sandboxd::cli {
namespace po = boost::program_options;
namespace {

constexpr flag shared[] = {
    {"socket", "PATH", "the daemon's socket"},
    {"state-dir", "PATH", "the daemon's state directory"},
    {"help,h", nullptr, "this text"},
};

std::string long_name(const flag& known) {
    const std::string_view name(known.name);
    return std::string(name.substr(0, name.find(',')));
}

std::string shown_name(const flag& known) {
    const std::string_view name(known.name);
    const auto comma = name.find(',');
    std::string text = comma == std::string_view::npos
                           ? "    --"
                           : "-" + std::string(name.substr(comma + 1)) + ", --";
    text += long_name(known);
    if (known.argument != nullptr) text += std::string(" ") + known.argument;
    return text;
}

po::options_description describe(const verb& of) {
    po::options_description description;
    const auto add = [&](const flag& known) {
        if (known.argument != nullptr) {
            description.add_options()(known.name, po::value<std::string>());
        } else {
            description.add_options()(known.name, "");
        }
    };
    std::for_each(of.flags.begin(), of.flags.end(), add);
    std::for_each(std::begin(shared), std::end(shared), add);
    return description;
}

} // namespace

std::optional<std::string> arguments::value(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) return std::nullopt;
    return found->second.back();
}

std::vector<std::string> arguments::values(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? std::vector<std::string>() : found->second;
}

std::vector<std::filesystem::path> context::sockets() const {
    return sys::client_sockets(env, where);
}

std::optional<std::filesystem::path> context::wanted_state_dir() const {
    if (where.socket || !where.state_dir_named) return std::nullopt;
    return where.state_dir;
}

connection context::connect(std::chrono::milliseconds patience) const {
    const std::vector<std::filesystem::path> tried = sockets();
    try {
        return connection::open(tried, patience, wanted_state_dir());
    } catch (const failure& why) {
        // A socket that was asked for by name may be any daemon's.
        const bool by_its_state = why.code() == exit_code::not_running && !where.socket;
        const pid_t owner = by_its_state ? sys::lock_owner(where.state_dir) : 0;
        if (owner == 0) throw;
        std::string all;
        for (const std::filesystem::path& socket : tried)
            all += (all.empty() ? "" : ", ") + socket.string();
        const std::string pid = std::to_string(owner);
        throw failure(exit_code::not_running,
                      "the daemon (pid " + pid + ") owns " + where.state_dir.string() +
                          " and does not listen on " + all,
                      "it may be about to; if not, end it with `kill " + pid +
                          "`, which leaves sandboxes and commands as they are, and start it again");
    }
}

connection context::connect_with_key() const {
    connection daemon = connect();
    if (!daemon.has_key()) {
        if (const auto key = sys::key_in(env)) {
            daemon.call("account.set", {{"api_key", key->reveal()}});
        }
    }
    return daemon;
}

std::span<const flag> common_flags() {
    return shared;
}

arguments parse(const verb& of, const std::vector<std::string>& given) {
    arguments result;
    const auto dashes =
        of.takes_command ? std::find(given.begin(), given.end(), "--") : given.end();
    if (dashes != given.end()) result.command_.assign(dashes + 1, given.end());
    try {
        const auto style =
            po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
        const po::options_description description = describe(of);
        const auto parsed = po::command_line_parser({given.begin(), dashes})
                                .options(description)
                                .style(style)
                                .run();
        for (const auto& option : parsed.options) {
            if (option.position_key >= 0) {
                result.positionals_.push_back(option.value.front());
            } else {
                auto& values = result.values_[option.string_key];
                values.push_back(option.value.empty() ? std::string() : option.value.front());
            }
        }
    } catch (const po::unknown_option& error) {
        throw usage_error(sys::without_value(error.what()), std::string(of.name));
    } catch (const po::error& error) {
        throw usage_error(error.what(), std::string(of.name));
    }
    for (const flag& known : of.flags) {
        if (!known.repeatable && result.values(long_name(known)).size() > 1) {
            throw usage_error("--" + long_name(known) + " is given twice", std::string(of.name));
        }
    }
    if (result.positionals_.size() > of.positionals && !result.has("help")) {
        const std::string& surplus = result.positionals_[of.positionals];
        if (of.takes_command) {
            throw failure(exit_code::usage, "the command must follow \"--\"",
                          "write: deepinfra-sandboxd " + std::string(of.name) + " -- " + surplus +
                              " ...");
        }
        throw usage_error("unexpected argument \"" + surplus + "\"", std::string(of.name));
    }
    return result;
}

std::string help(const verb& of) {
    std::string text = "usage: deepinfra-sandboxd " + std::string(of.usage) + "\n\n" +
                       std::string(of.details) + "\noptions:\n";
    std::size_t width = 0;
    const auto measure = [&](const flag& known) {
        width = std::max(width, shown_name(known).size());
    };
    const auto show = [&](const flag& known) {
        std::string line = "  " + shown_name(known);
        line.resize(width + 4, ' ');
        text += line + known.meaning + "\n";
    };
    std::for_each(of.flags.begin(), of.flags.end(), measure);
    std::for_each(std::begin(shared), std::end(shared), measure);
    std::for_each(of.flags.begin(), of.flags.end(), show);
    std::for_each(std::begin(shared), std::end(shared), show);
    return text;
}

void print(std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
        if (n < 0) {
            if (errno == EINTR) continue;
            throw failure(exit_code::error,
                          "cannot write to stdout: " + std::generic_category().message(errno));
        }
        text.remove_prefix(static_cast<std::size_t>(n));
    }
}

void print_json(const json::object& object) {
    print(json::serialize(object) + "\n");
}

std::string render_failure(const failure& why, const style& paint_with, std::string_view prefix) {
    std::string text =
        std::string(prefix) + paint_with(paint::bad, "error:") + " " + printable(why.what()) + "\n";
    if (!why.hint().empty()) {
        text += std::string(prefix) + paint_with(paint::strong, "hint:") + " " +
                printable(why.hint()) + "\n";
    }
    return text;
}

} // namespace sandboxd::cli
