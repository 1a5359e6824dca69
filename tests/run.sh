#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. Arguments go to pytest, e.g. `bash tests/run.sh -k cancel`.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

install_missing
build_tree

say "unit tests"
"$build/tests/unit/unit-tests"

say "what reads hostile input meets it"
"$build/tests/fuzz/fuzz"

say "end-to-end tests and the Python client's tests"
export DEEPINFRA_SANDBOXD="$build/daemon/deepinfra-sandboxd"
export DEEP_SANDS_EMULATOR="$build/tests/emulator/deep-sands-emulator"
cd "$root"
"$python" -m pytest -p no:cacheprovider tests "$@"
