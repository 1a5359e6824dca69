#include "core/attached_command.hpp"

#include "base/base64.hpp"
#include "base/utf8.hpp"

#include <algorithm>
#include <string_view>

namespace sandboxd::core {
namespace {

constexpr std::string_view marker = "DEEPINFRA_SANDBOXD_EXEC=";
constexpr std::size_t inline_stdin = 64U << 10; // bytes; in base64 it still fits one argument

// Arguments: directory, 1 to merge stderr into stdout, kind of stdin, stdin's text or path, then
// the command.
constexpr std::string_view wrapper = R"sh(
[ "$2" = 1 ] && exec 2>&1
cd -- "$1" 2>/dev/null || {
    printf 'deepinfra-sandboxd: %s is not there, so this runs in /workspace\n' "$1" >&2
    cd /workspace || exit 125
}
unset OLDPWD
kind=$3 data=$4
shift 4
case $kind in
text)
    printf %s "$data" | base64 -d | "$@"
    exit
    ;;
file) [ -r "$data" ] && exec <"$data" && rm -f -- "$data" || exit 125 ;;
*) exec </dev/null ;;
esac
unset kind data
exec "$@"
)sh";

// In front of the wrapper when an argument is not UTF-8, which JSON cannot carry: each argument
// then comes with its backslashes and non-ASCII bytes as \0ooo. The dot keeps the newlines at the
// end that $( ) would take.
constexpr std::string_view decoder = R"sh(
count=$#
while [ "$count" -gt 0 ]; do
    value=$(printf '%b.' "$1")
    shift
    set -- "$@" "${value%.}"
    count=$((count - 1))
done
unset count value
)sh";

std::string octal_escaped(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x80 && byte != '\\') {
            out += c;
            continue;
        }
        out += "\\0";
        out += static_cast<char>('0' + (byte >> 6));
        out += static_cast<char>('0' + ((byte >> 3) & 7));
        out += static_cast<char>('0' + (byte & 7));
    }
    return out;
}

} // namespace

prepared_command build_attached(const command_spec& spec, const std::string& exec_id) {
    check_spec(spec);
    prepared_command built;
    std::vector<std::string> args{spec.cwd.empty() ? "/workspace" : spec.cwd,
                                  spec.merge_output ? "1" : "0"};

    if (spec.stdin_open) {
        args.insert(args.end(), {"file", upload_path("stdin", exec_id)});
    } else if (!spec.stdin_data || spec.stdin_data->empty()) {
        args.insert(args.end(), {"none", ""});
    } else if (spec.stdin_data->size() <= inline_stdin) {
        args.insert(args.end(), {"text", base64_encode(*spec.stdin_data)});
    } else {
        const std::string path = upload_path("stdin", exec_id);
        built.uploads.push_back({path, *spec.stdin_data});
        args.insert(args.end(), {"file", path});
    }

    args.push_back("env");
    args.push_back(std::string(marker) + exec_id);
    for (const auto& [name, value] : spec.env) {
        args.push_back(name + "=" + value);
    }
    if (!spec.script && !spec.script_size) {
        if (spec.argv.front().find('=') != std::string::npos) {
            args.insert(args.end(),
                        {"sh", "-c", "exec \"$@\"", "sh"}); // env would take it for a variable
        }
        args.insert(args.end(), spec.argv.begin(), spec.argv.end());
    } else if (spec.script && spec.script->size() <= max_argument) {
        args.insert(args.end(), {"bash", spec.login ? "-lc" : "-c", *spec.script});
    } else {
        const std::string path = upload_path("script", exec_id);
        if (spec.script) {
            built.uploads.push_back({path, *spec.script});
        }
        args.insert(args.end(), {"bash", "-c", std::string(script_file_runner), "bash", path});
        if (spec.login) {
            args.push_back("-l");
        }
    }

    const bool all_text =
        std::all_of(args.begin(), args.end(), [](const auto& each) { return is_utf8(each); });
    built.argv = {"/bin/sh", "-c",
                  all_text ? std::string(wrapper) : std::string(decoder) + std::string(wrapper),
                  "deepinfra-sandboxd"};
    for (std::string& each : args) {
        built.argv.push_back(all_text ? std::move(each) : octal_escaped(each));
    }
    check_lengths(built.argv);
    return built;
}

std::vector<std::string> kill_command(const std::string& exec_id, kill_signal signal) {
    // `members`: every process that carries the marker, and all descendants of those. The kill
    // script itself carries none. A process that ends while being looked at is simply not there.
    static constexpr std::string_view script = R"sh(
marker=$1 signal=$2
members() {
    found=" "
    for dir in $(grep -lzFx -e "$marker" /proc/[0-9]*/environ 2>/dev/null); do
        dir=${dir%/environ}
        found="$found${dir#/proc/} "
    done
    grown=$found
    while [ -n "$grown" ]; do
        grown=
        for status in /proc/[0-9]*/status; do
            pid= parent= state=
            while read -r field value rest; do
                case $field in
                State:) state=$value ;;
                Pid:) pid=$value ;;
                PPid:) parent=$value; break ;;
                esac
            done 2>/dev/null <"$status" || continue
            [ "$state" = Z ] && continue
            case $found in *" $pid "*) continue ;; esac
            case $found in *" $parent "*) found="$found$pid " grown=1 ;; esac
        done
    done
    found=${found# }
    [ -n "$found" ]
}
if [ "$signal" != KILL ]; then
    members && kill -s "$signal" $found 2>/dev/null
    for pause in 0.05 0.05 0.1 0.2 0.3 0.3; do
        members || exit 0
        sleep "$pause"
    done
fi
seen=
while members && [ "$found" != "$seen" ]; do
    kill -s STOP $found 2>/dev/null
    seen=$found
done
for pause in 0 0.01 0.02 0.05 0.1 0.2 0.3; do
    members || exit 0
    kill -s KILL $found 2>/dev/null
    sleep "$pause"
done
members && exit 1
exit 0
)sh";
    const char* name = signal == kill_signal::interrupt   ? "INT"
                       : signal == kill_signal::terminate ? "TERM"
                                                          : "KILL";
    return {"/bin/sh",
            "-c",
            std::string(script),
            "deepinfra-sandboxd-kill",
            std::string(marker) + exec_id,
            name};
}

} // namespace sandboxd::core
