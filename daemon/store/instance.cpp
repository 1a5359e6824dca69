#include "store/instance.hpp"

#include "base/fingerprint.hpp"
#include "base/id.hpp"
#include "sys/file.hpp"

#include <optional>
#include <sstream>

namespace sandboxd::store {

std::string hashed_machine_id() {
    const std::optional<std::string> id = sys::read_file("/etc/machine-id", 4096);
    return id && !id->empty() ? sha256_hex("deepinfra-sandboxd machine v1\n" + *id).substr(0, 32) : std::string();
}

std::string load_instance(const std::filesystem::path& state_dir, const std::string& machine_id) {
    const std::filesystem::path file = state_dir / "instance";
    if (const std::optional<std::string> text = sys::read_file(file, 4096)) {
        std::istringstream words(*text);
        std::string id;
        std::string machine;
        words >> id >> machine;
        const bool plausible = id.size() == 32 && id.find_first_not_of("0123456789abcdef") == std::string::npos;
        if (plausible && machine == machine_id) {
            return id;
        }
        std::filesystem::rename(file, state_dir / "instance.bad");
    }
    const std::string id = random_hex(16);
    sys::atomic_write(file, id + " " + machine_id + "\n");
    return id;
}

} // namespace sandboxd::store
