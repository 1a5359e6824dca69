#include "store/instance.hpp"

#include "base/fingerprint.hpp"
#include "base/id.hpp"
#include "store/quarantine.hpp"
#include "sys/file.hpp"
#include "sys/paths.hpp"

#include <optional>
#include <sstream>
#include <system_error>

namespace sandboxd::store {
namespace {

// Nothing if there is no file; empty if it is none of ours: too large, or not even a file.
std::optional<std::string> read_if_sane(const std::filesystem::path& file) {
    try {
        return sys::read_file(file, 4096);
    } catch (const std::system_error& problem) {
        if (problem.code() == std::errc::file_too_large ||
            problem.code() == std::errc::invalid_argument) {
            return std::string();
        }
        throw;
    }
}

} // namespace

std::string hashed_machine_id() {
    const std::optional<std::string> id = sys::read_file("/etc/machine-id", 4096);
    return id && !id->empty() ? sha256_hex("deepinfra-sandboxd machine v1\n" + *id).substr(0, 32)
                              : std::string();
}

instance load_instance(const std::filesystem::path& state_dir, const std::string& machine_id) {
    const std::filesystem::path file = sys::instance_file(state_dir);
    instance found;
    if (const std::optional<std::string> text = read_if_sane(file)) {
        std::istringstream words(*text);
        std::string machine;
        words >> found.id >> machine;
        const bool plausible = found.id.size() == 32 &&
                               found.id.find_first_not_of("0123456789abcdef") == std::string::npos;
        // A machine may get its id only later (a container, a first boot), or lose it: only two ids
        // that differ show that this is another one.
        if (plausible && (machine == machine_id || machine.empty() || machine_id.empty())) {
            if (machine.empty() && !machine_id.empty()) {
                try {
                    sys::atomic_write(file, found.id + " " + machine_id + "\n");
                } catch (const std::system_error&) {
                    // A later start does it: a full disk must not keep this one from reaping.
                }
            }
            return found;
        }
        if (plausible) {
            const std::filesystem::path state = state_dir / "state.json";
            const bool any_state = std::filesystem::exists(state);
            // Before the id: after a crash in between, the next start does the rest.
            const std::string kept = any_state ? keep_aside(state).string() : std::string();
            found.complaints.push_back(
                "the state directory was made on another machine (kept as " +
                keep_aside(file).string() + "); " +
                (any_state
                     ? "the sandboxes in its state.json are left to the daemon there (kept as " +
                           kept + ")"
                     : "it named no sandboxes"));
        } else {
            found.complaints.push_back("the instance id could not be read and was kept as " +
                                       keep_aside(file).string() + "; this daemon has a new one");
        }
    }
    found.id = random_hex(16);
    found.fresh = true;
    sys::atomic_write(file, found.id + " " + machine_id + "\n");
    return found;
}

} // namespace sandboxd::store
