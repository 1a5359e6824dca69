#include "core/shim_command.hpp"

#include "base/base64.hpp"
#include "base/error.hpp"
#include "base/fingerprint.hpp"
#include "base/utf8.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sandboxd::core {
namespace {

constexpr std::string_view home = "/workspace/.deepinfra-sandboxd/";

// Every byte that JSON text cannot carry, and "%" itself, as %XX.
std::string percent_encoded(std::string_view bytes) {
    static constexpr char digits[] = "0123456789ABCDEF";
    std::string out;
    while (!bytes.empty()) {
        const std::size_t whole = valid_utf8_prefix(bytes);
        for (const char c : bytes.substr(0, whole)) {
            out += c;
            if (c == '%') {
                out += "25";
            }
        }
        bytes.remove_prefix(whole);
        if (!bytes.empty()) {
            const auto byte = static_cast<unsigned char>(bytes.front());
            out += {'%', digits[byte >> 4], digits[byte & 15]};
            bytes.remove_prefix(1);
        }
    }
    return out;
}

bool fits(const std::vector<std::string>& argv) {
    return kernel_size(argv) <= max_arguments &&
           std::all_of(argv.begin(), argv.end(),
                       [](const auto& each) { return each.size() <= max_argument; });
}

void add_field(std::string& to, std::string_view field) {
    to += std::to_string(field.size());
    to += ':';
    to += field;
}

} // namespace

std::string shim_path(std::string_view hash) {
    return std::string(home) + "shim-" + std::string(hash);
}

std::vector<std::string> shim_install(const std::string& uploaded, const std::string& path) {
    return {"/bin/sh", "-c",     "chmod 755 \"$1\" && mv -f \"$1\" \"$2\" && exec \"$2\" probe",
            "sh",      uploaded, path};
}

std::string command_digest(const command_spec& spec,
                           std::optional<std::chrono::milliseconds> timeout) {
    std::string all;
    add_field(all, std::to_string(spec.argv.size()));
    for (const std::string& each : spec.argv) {
        add_field(all, each);
    }
    add_field(all, spec.script ? "script" : "");
    add_field(all, spec.script.value_or(""));
    add_field(all, spec.login ? "login" : "");
    add_field(all, spec.cwd);
    add_field(all, std::to_string(spec.env.size()));
    for (const auto& [name, value] : spec.env) {
        add_field(all, name);
        add_field(all, value);
    }
    add_field(all, spec.stdin_data ? "stdin" : "");
    add_field(all, spec.stdin_data.value_or(""));
    add_field(all, spec.stdin_open ? "open" : "");
    add_field(all, spec.script_size ? std::to_string(*spec.script_size) : "");
    add_field(all, spec.script_sha256);
    add_field(all, spec.merge_output ? "merge" : "");
    add_field(all, timeout ? std::to_string(timeout->count()) : "");
    return sha256_hex(all);
}

prepared_command shim_run(const std::string& shim, const std::string& exec_id,
                          const command_spec& spec,
                          std::optional<std::chrono::milliseconds> timeout,
                          std::chrono::seconds longest,
                          const std::vector<std::string>& acknowledged, std::uint64_t spool,
                          const std::vector<std::string>& marks) {
    check_spec(spec);
    prepared_command built;
    std::vector<std::string>& argv = built.argv;
    argv = {shim,
            "run",
            exec_id,
            "--digest",
            command_digest(spec, timeout),
            "--max-seconds",
            std::to_string(longest.count()),
            "--spool-cap",
            std::to_string(spool)};
    const auto add = [&argv](std::string_view option, std::string value) {
        argv.emplace_back(option);
        argv.push_back(std::move(value));
    };
    if (timeout) {
        add("--timeout-ms", std::to_string(timeout->count()));
    }
    add("--cwd", spec.cwd.empty() ? "/workspace" : percent_encoded(spec.cwd));
    for (const auto& [name, value] : spec.env) {
        add("--env", percent_encoded(name + "=" + value));
    }
    if (spec.merge_output) {
        argv.emplace_back("--merge");
    }
    if (spec.stdin_open) {
        add("--stdin", "open");
    } else if (spec.stdin_data && spec.stdin_data->empty()) {
        add("--stdin", "empty");
    } else if (spec.stdin_data && spec.stdin_data->size() <= inline_stdin) {
        add("--stdin", "data:" + base64_encode(*spec.stdin_data));
    } else if (spec.stdin_data) {
        built.uploads.push_back({upload_path("stdin", exec_id), *spec.stdin_data});
        add("--stdin", "file:" + percent_encoded(built.uploads.back().path));
        argv.emplace_back("--unlink-stdin");
    }
    for (const std::string& id : acknowledged) {
        add("--ack", id);
    }
    for (const std::string& path : marks) {
        add("--mark", percent_encoded(path));
    }
    const auto dashes = argv.insert(argv.end(), "--") - argv.begin();
    std::string script = spec.script ? percent_encoded(*spec.script) : "";
    if (spec.script_size || script.size() > max_argument) {
        const std::string path = upload_path("script", exec_id);
        if (spec.script) {
            built.uploads.push_back({path, *spec.script});
        }
        argv.insert(argv.end(), {"bash", "-c", percent_encoded(script_file_runner), "bash", path});
        if (spec.login) {
            argv.emplace_back("-l");
        }
    } else if (spec.script) {
        argv.insert(argv.end(), {"bash", spec.login ? "-lc" : "-c", std::move(script)});
    } else {
        for (const std::string& each : spec.argv) {
            argv.push_back(percent_encoded(each));
        }
        // What is text can also go as it is, which is shorter and not harder to read back.
        if (!fits(argv) && std::all_of(spec.argv.begin(), spec.argv.end(), is_utf8)) {
            argv.resize(static_cast<std::size_t>(dashes));
            argv.insert(argv.end(), {"--raw", "--"});
            argv.insert(argv.end(), spec.argv.begin(), spec.argv.end());
        }
    }
    check_lengths(argv);
    return built;
}

std::vector<std::string> shim_follow(const std::string& shim, const std::string& exec_id,
                                     std::uint64_t from, const std::string& digest,
                                     std::chrono::seconds longest, std::uint64_t most,
                                     bool attended) {
    std::vector<std::string> argv{shim,
                                  "follow",
                                  exec_id,
                                  std::to_string(from),
                                  "--digest",
                                  digest,
                                  "--max-seconds",
                                  std::to_string(longest.count()),
                                  "--max-bytes",
                                  std::to_string(most)};
    if (!attended) {
        argv.emplace_back("--unattended");
    }
    return argv;
}

void bound_run(std::vector<std::string>& argv, std::uint64_t most,
               std::chrono::milliseconds grace) {
    constexpr std::ptrdiff_t behind_id = 3; // shim run ID
    const std::vector<std::string> options{"--max-bytes", std::to_string(most), "--spool-grace-ms",
                                           std::to_string(grace.count())};
    argv.insert(argv.begin() + std::min<std::ptrdiff_t>(behind_id, std::ssize(argv)),
                options.begin(), options.end());
}

std::vector<std::string> shim_acknowledge(const std::string& shim, const std::string& exec_id,
                                          std::uint64_t pos) {
    return {shim, "ack", exec_id, std::to_string(pos)};
}

std::vector<std::string> shim_stdin(const std::string& shim, const std::string& exec_id,
                                    std::uint64_t offset, const input_piece& piece) {
    std::vector<std::string> argv{shim, "stdin", exec_id, std::to_string(offset)};
    if (!piece.path.empty()) {
        argv.insert(argv.end(), {"--file", percent_encoded(piece.path), "--unlink"});
    } else if (!piece.bytes.empty()) {
        argv.insert(argv.end(), {"--data", base64_encode(piece.bytes)});
    }
    if (piece.eof) {
        argv.emplace_back("--eof");
    }
    return argv;
}

std::vector<std::string> shim_kill(const std::string& shim, const std::string& exec_id,
                                   kill_signal signal) {
    std::vector<std::string> argv{shim, "kill", exec_id, "--confirm-ms", "3000"};
    if (signal != kill_signal::kill) {
        argv.insert(argv.end(), {"--signal", signal == kill_signal::interrupt ? "INT" : "TERM",
                                 "--grace-ms", "1000"});
    }
    return argv;
}

} // namespace sandboxd::core
