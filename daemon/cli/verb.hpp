// What a verb is, and what it is given: one file a verb implements one of these.
#pragma once

#include "cli/connection.hpp"
#include "cli/failure.hpp"
#include "cli/text.hpp"
#include "sys/settings.hpp"

#include <boost/json/object.hpp>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::cli {

struct flag {
    const char* name;     // "task"; "stdin,i" has a short form
    const char* argument; // for people: "TASK"; nullptr: a switch
    const char* meaning;
    bool repeatable = false;
};

// What stands on the command line after the verb.
class arguments {
public:
    bool has(const std::string& name) const { return values_.contains(name); }
    std::optional<std::string> value(const std::string& name) const;
    std::vector<std::string> values(const std::string& name) const;
    const std::vector<std::string>& positionals() const noexcept { return positionals_; }
    // Of exec: all that follows "--".
    const std::vector<std::string>& command() const noexcept { return command_; }

private:
    friend arguments parse(const struct verb&, const std::vector<std::string>&);
    std::map<std::string, std::vector<std::string>> values_;
    std::vector<std::string> positionals_;
    std::vector<std::string> command_;
};

// Where we are: the user's environment, and what is at the ends of stdout and stderr.
struct context {
    const sys::environment& env;
    sys::client_settings where;
    style out; // colours of stdout
    style err; // and of stderr
    bool out_is_terminal = false;
    bool err_is_terminal = false;

    // Where the daemon may be listening now.
    std::vector<std::filesystem::path> sockets() const;
    // Whose daemon it must be, if not just the one that listens there.
    std::optional<std::filesystem::path> wanted_state_dir() const;
    connection connect(std::chrono::milliseconds patience = connection::pulse) const;
    // For what needs the cloud: a daemon without an API key is given the one of our environment.
    connection connect_with_key() const;
};

struct verb {
    std::string_view name;
    std::string_view usage;   // what follows "deepinfra-sandboxd "
    std::string_view summary; // one line, lower case
    std::string_view details; // paragraphs and examples, wrapped by hand
    std::vector<flag> flags;
    std::size_t positionals = 0; // at most so many
    bool takes_command = false;  // what follows "--" is a command
    exit_code failed = exit_code::error;
    int (*run)(const context&, const arguments&) = nullptr;
};

// Throws usage_error.
arguments parse(const verb&, const std::vector<std::string>& given);
std::string help(const verb&);

// Those that every verb has.
std::span<const flag> common_flags();

// Writes to stdout at once; throws a failure when it cannot.
void print(std::string_view text);
void print_json(const json::object&);
// For stderr: "error: ..." and "hint: ...", each line with `prefix`, escaped.
std::string render_failure(const failure&, const style&, std::string_view prefix = {});

extern const verb status_verb;
extern const verb list_verb;
extern const verb exec_verb;
extern const verb attach_verb;
extern const verb cancel_verb;
extern const verb cp_verb;
extern const verb start_verb;
extern const verb stop_verb;
extern const verb terminate_verb;
extern const verb plans_verb;
extern const verb doctor_verb;
extern const verb wait_verb;

} // namespace sandboxd::cli
