#include "core/command.hpp"

#include "base/error.hpp"

namespace sandboxd::core {
namespace {

void check_no_nul(std::string_view bytes, std::string_view what) {
    if (bytes.find('\0') != std::string_view::npos) {
        throw rpc_error(error_name::invalid_params,
                        std::string(what) + " holds a NUL byte, which no program can be given");
    }
}

} // namespace

void check_spec(const command_spec& spec) {
    check_no_nul(spec.cwd, "cwd");
    if (spec.script) {
        check_no_nul(*spec.script, "script");
    }
    for (const std::string& each : spec.argv) {
        check_no_nul(each, "argv");
    }
    for (const auto& [name, value] : spec.env) {
        check_no_nul(name, "env");
        check_no_nul(value, "env");
        if (name.empty() || name.find('=') != std::string::npos) {
            throw rpc_error(error_name::invalid_params,
                            "'" + name + "' cannot be the name of an environment variable");
        }
        check_lengths({name + "=" + value});
    }
    check_lengths(spec.argv);
    check_lengths({spec.cwd});
}

void check_lengths(const std::vector<std::string>& argv) {
    for (const std::string& each : argv) {
        if (each.size() > max_argument) {
            throw rpc_error(error_name::argument_too_long,
                            "an argument or environment value of " + std::to_string(each.size()) +
                                " bytes is over the kernel's limit of " +
                                std::to_string(max_argument) + "; nothing has run");
        }
    }
}

std::string upload_path(std::string_view kind, const std::string& exec_id) {
    return "/workspace/.deepinfra-sandboxd/" + std::string(kind) + "-" + exec_id;
}

} // namespace sandboxd::core
