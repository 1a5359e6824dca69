#!/usr/bin/env bash
# Installs what is missing, builds, and shows the main job against the bundled emulator: commands in a sandbox through the
# command line and through the Python client, live output, an agent that ends and another that carries on, the idle
# reaper, and the resume. Nothing stays behind. Each step checks what it shows, so that the demonstration cannot lie.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

install_missing
build_tree deepinfra-sandboxd deep-sands-emulator

work=$(mktemp -d)
started=()
clean_up() {
    local pid
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true
    done
    rm -rf -- "$work"
}
trap clean_up EXIT

# Nothing of the machine's own configuration or daemon is used or touched.
unset DEEPINFRA_SANDBOX_PLAN XDG_RUNTIME_DIR
export XDG_CONFIG_HOME=$work/config DEEPINFRA_SANDBOXD_STATE_DIR=$work/state DEEPINFRA_SANDBOXD_SOCKET=$work/run/rpc.sock
export DEEPINFRA_API_KEY=demo-key PYTHONPATH=$root/client-py PYTHONDONTWRITEBYTECODE=1
sandboxd=$build/daemon/deepinfra-sandboxd

show() {
    printf '\n$ %s\n' "$*" | sed "s#$sandboxd#deepinfra-sandboxd#"
    "$@"
}

# Every line of the command's output with the time at which it came.
timed() {
    local line begin=$EPOCHREALTIME
    while IFS= read -r line; do
        printf '  %4d ms  %s\n' $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) "$line"
    done
}

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        if [ $SECONDS -ge $deadline ]; then
            echo "not within the time: $*" >&2
            exit 1
        fi
        sleep 0.1
    done
}

say "an emulated deep_sands cloud, and the daemon (idle sandboxes are stopped after 3 s here)"
"$build/tests/emulator/deep-sands-emulator" --listen 127.0.0.1:0 --api-key "$DEEPINFRA_API_KEY" --data-dir "$work/cloud" \
    --ready-file "$work/ready" --set boot_ms=400 --set start_ms=300 --set stop_ms=200 >"$work/cloud.log" 2>&1 &
started+=($!)
wait_for 15 test -s "$work/ready"
DEEPINFRA_BASE_URL=$(grep -o 'http://[0-9.:]*' "$work/cloud.log" | head -n 1)
export DEEPINFRA_BASE_URL
"$sandboxd" serve --idle-stop 3 2>"$work/daemon.log" &
started+=($!)
show "$sandboxd" wait --timeout 15

say "the command line: the first command creates the sandbox, and output arrives while it runs"
show "$sandboxd" exec -- bash -c 'echo "hello from $(pwd)"; for i in 1 2 3; do sleep 0.3; echo "line $i"; done; exit 3' | timed &&
    code=0 || code=${PIPESTATUS[0]}
echo "  exit code $code"
[ "$code" = 3 ]

say "an agent: a Python process that works in the same sandbox and ends"
cat >"$work/agent1.py" <<'PYTHON'
from deepinfra_sandboxd import Client

with Client() as client:
    for chunk in client.start(script="for i in 1 2 3; do echo step $i; sleep 0.2; done; date > notes; echo $$ > /tmp/gone"):
        print("  agent 1 reads:", chunk.data.decode(), end="", flush=True)
    print("  agent 1 is done, its process ends now")
PYTHON
show "$python" "$work/agent1.py"

say "the daemon still has the sandbox"
show "$sandboxd" status
before=$("$sandboxd" status --json | "$python" -c 'import json,sys; print(json.load(sys.stdin)["sandboxes"][0]["id"])')

say "a new agent process finds the same sandbox and its files"
cat >"$work/agent2.py" <<'PYTHON'
import sys

from deepinfra_sandboxd import Client

with Client() as client:
    done = client.run(["cat", "notes"])
    print("  agent 2 reads:", done.stdout.decode(), end="")
    status = client.call("daemon.status")
    assert done.returncode == 0 and not done.recreated
    assert [each["id"] for each in status["sandboxes"]] == [sys.argv[1]], status["sandboxes"]
    print("  same sandbox:", sys.argv[1])
PYTHON
show "$python" "$work/agent2.py" "$before"

say "nobody uses it: the idle reaper stops it (a stopped sandbox costs nothing)"
is_stopped() { "$sandboxd" list | grep -q stopped; }
wait_for 20 is_stopped
show "$sandboxd" status

say "the next command starts it again: /workspace is there, the rest was reset, and it says so"
show "$sandboxd" exec -- sh -c 'cat notes; ls /tmp/gone'  2>&1 && code=0 || code=$?
[ "$code" = 2 ] # ls: /tmp/gone is gone
after=$("$sandboxd" status --json | "$python" -c 'import json,sys; print(json.load(sys.stdin)["sandboxes"][0]["id"])')
[ "$before" = "$after" ]

say "no more need for it"
show "$sandboxd" terminate --task default

say "done; the daemon, the emulated cloud and their files are removed"
