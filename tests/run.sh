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
run_pytest() { "$python" -m pytest -p no:cacheprovider "$@"; }
if [ $# -gt 0 ] || [ "$(nproc)" = 1 ]; then
    run_pytest tests "$@"
    exit
fi
# Much of them waits for something, so two halves at once take little more than half the time. The second one's output
# comes when it has ended.
log=$(mktemp)
set -m # else what is started in the background would ignore SIGINT, and so would all that it starts
run_pytest tests --ignore-glob='*/e2e/test_[a-e]*.py' >"$log" 2>&1 &
second=$!
set +m
trap 'kill -- "-$second" 2>/dev/null || true; rm -f "$log"' EXIT
status=0
run_pytest tests/e2e/test_[a-e]*.py || status=$?
wait "$second" || status=$?
cat "$log"
exit "$status"
