# Sourced by run.sh and demo.sh: what both need before they can start. Works on a bare Debian 12 as root or with sudo.
#
# Afterwards: the packages are there, the tree is built in $build, and $python is an interpreter with the test modules.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${SANDBOXD_BUILD_DIR:-$root/build}
python=/usr/bin/python3 # Debian's, because the test modules are Debian's
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 # so that a clone elsewhere finds what this one has compiled

packages=(
    g++ cmake ninja-build ccache
    libboost1.81-dev libboost-json1.81-dev libboost-program-options1.81-dev libboost-url1.81-dev
    libarchive-dev liblz4-dev libssl-dev libspdlog-dev doctest-dev musl-tools
    python3 python3-pytest python3-jsonschema python3-lz4 python3-setuptools python3-wheel mypy
    curl openssl systemd procps util-linux
)

say() { printf '\n==> %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "These packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2
        exit 1
    fi
}

install_missing() {
    missing=()
    local package
    for package in "${packages[@]}"; do
        if [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null)" != "ii " ]; then
            missing+=("$package")
        fi
    done
    if [ ${#missing[@]} = 0 ]; then
        return
    fi
    say "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# $@: targets; none: all of them.
build_tree() {
    say "building in $build"
    if [ ! -f "$build/build.ninja" ]; then
        cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
    fi
    # Line by line where nobody watches a terminal, so that a log shows progress and not one endless line.
    NINJA_STATUS="[%f/%t %es] " cmake --build "$build" --target "${@:-all}"
}
