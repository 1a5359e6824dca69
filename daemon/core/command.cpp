#include "core/command.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sandboxd::core {
namespace {

void check_no_nul(std::string_view bytes, std::string_view what) {
    if (bytes.find('\0') != std::string_view::npos) {
        throw rpc_error(error_name::invalid_params,
                        std::string(what) + " holds a NUL byte, which no program can be given");
    }
}

[[noreturn]] void refuse_length(std::string_view what, std::size_t size, std::string_view how,
                                std::size_t most) {
    throw rpc_error(error_name::argument_too_long,
                    std::string(what) + " of " + std::to_string(size) + " bytes" +
                        std::string(how) + " is over the kernel's limit of " +
                        std::to_string(most) + "; nothing has run");
}

void check_length(std::string_view what, std::size_t size) {
    if (size > max_argument) {
        refuse_length(what, size, "", max_argument);
    }
}

} // namespace

void check_spec(const command_spec& spec) {
    check_no_nul(spec.cwd, "cwd");
    if (spec.script) {
        check_no_nul(*spec.script, "script");
    }
    std::size_t total = kernel_size(spec.argv);
    for (const std::string& each : spec.argv) {
        check_no_nul(each, "argv");
        check_length("an argument", each.size());
    }
    for (const auto& [name, value] : spec.env) {
        check_no_nul(name, "env");
        check_no_nul(value, "env");
        if (name.empty() || name.find('=') != std::string::npos) {
            throw rpc_error(error_name::invalid_params,
                            "'" + name + "' cannot be the name of an environment variable");
        }
        const std::string entry = name + "=" + value;
        check_length("an environment variable", entry.size());
        total += kernel_size({entry});
    }
    check_length("a directory", spec.cwd.size());
    if (total > max_arguments) {
        refuse_length("an argument list with environment", total, " in all", max_arguments);
    }
}

void check_lengths(const std::vector<std::string>& argv) {
    static constexpr std::string_view why =
        " on its way to the sandbox, where '%' and bytes that are not text take three or more,";
    for (const std::string& each : argv) {
        if (each.size() > max_argument) {
            refuse_length("an argument, directory or environment variable", each.size(), why,
                          max_argument);
        }
    }
    if (const std::size_t total = kernel_size(argv); total > max_arguments) {
        refuse_length("an argument list with environment", total, why, max_arguments);
    }
}

std::size_t kernel_size(const std::vector<std::string>& argv) noexcept {
    std::size_t size = 0;
    for (const std::string& each : argv) {
        size += each.size() + 1 + sizeof(char*);
    }
    return size;
}

std::string upload_path(std::string_view kind, const std::string& exec_id) {
    return "/workspace/.deepinfra-sandboxd/" + std::string(kind) + "-" + exec_id;
}

std::vector<std::string> remove_uploads(std::vector<std::string> paths) {
    std::vector<std::string> argv{"rm", "-f", "--"};
    std::move(paths.begin(), paths.end(), std::back_inserter(argv));
    return argv;
}

} // namespace sandboxd::core
