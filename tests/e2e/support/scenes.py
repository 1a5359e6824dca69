"""What tests of commands and sandboxes share: looking into the emulated cloud from behind."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, b64

EXEC = "POST /v1/sandboxes/{id}/exec"
LIST = "GET /v1/sandboxes"
CATALOG = "GET /v1/sandboxes/catalog"
CREATE = "POST /v1/sandboxes"
GET = "GET /v1/sandboxes/{id}"
START = "POST /v1/sandboxes/{id}/start"
STOP = "POST /v1/sandboxes/{id}/stop"
RUNNER = "deepinfrad"  # what is left of its command line
SHIM = "/.deepinfra-sandboxd/shim-"
DELETE = "DELETE /v1/sandboxes/{id}"
PIECE = 512 << 10  # bytes of one exec.stdin
AHEAD = 8  # of them unanswered

# Says when it has begun, prints in two parts, and leaves a mark each time it runs.
TWO_PARTS = "echo x >>ran; echo first; until [ -e go ]; do sleep 0.01; done; echo second; echo other >&2; exit 3"


def living(emulator: Emulator) -> list[dict[str, Any]]:
    """Sandboxes of all accounts that are not deleted."""
    return [one for one in emulator.sandboxes() if one["state"] != "deleted"]


def only_id(emulator: Emulator) -> str:
    """The id of the one sandbox that lives; AssertionError if there are more, or none."""
    found = living(emulator)
    assert len(found) == 1, found
    sandbox_id: str = found[0]["sandbox_id"]
    return sandbox_id


def workspace(emulator: Emulator) -> pathlib.Path:
    """/workspace of the one sandbox that lives, seen from here."""
    return pathlib.Path(emulator.sandbox(only_id(emulator))["workspace"])


def appears(path: pathlib.Path) -> None:
    """Waits for a file that a command makes."""
    wait_until(path.exists, f"{path.name} in /workspace")


def ran(emulator: Emulator) -> int:
    """How often TWO_PARTS, or what else leaves a line in `ran`, has run."""
    return len((workspace(emulator) / "ran").read_text().splitlines())


def processes(emulator: Emulator) -> list[str]:
    """Command lines that run in the one sandbox, without what the daemon itself runs there: the shim's runners and followers, and
    the attached form's way of ending others."""
    every = [one["cmdline"] for one in emulator.processes(only_id(emulator))]
    ours = ("marker=$1 signal=$2", "DEEPINFRA_SANDBOXD_EXEC=", SHIM)
    return [line for line in every if line and not line.startswith(RUNNER) and not any(each in line for each in ours)]


# Sets $runners, the shim's runners in the sandbox, and $followers, those of its processes that the platform reads.
FIND_SHIMS = f"""
for p in /proc/[0-9]*; do
    [ "$(cat $p/comm)" = {RUNNER} ] || continue
    case $(readlink $p/fd/1) in /dev/null) runners="$runners ${{p#/proc/}}";; *) followers="$followers ${{p#/proc/}}";; esac
done 2>/dev/null
"""


def without_shim(emulator: Emulator, **match: str) -> None:
    """The next sandbox cannot run the shim, as where /workspace is mounted noexec: its commands are of the attached form.
    Its first call that is of this kind must be the one that looks whether it can."""
    emulator.fault_exec({"act_then_status": {"status": 200, "body": '{"stderr": "sh: Permission denied\\n"}\n{"returncode": 126}\n'}}, **match)


def piece(exec_id: str, offset: int, data: bytes, *, eof: bool = False, stream: str = "stdin") -> dict[str, Any]:
    return {"exec_id": exec_id, "stream": stream, "offset": offset, "data_b64": b64(data)["b64"], "eof": eof}


def pour(peer: Peer, exec_id: str, data: bytes, *, stream: str = "stdin") -> None:
    """All of it, with as many pieces under way as may be."""
    under_way: list[int | None] = []
    for offset in range(0, len(data), PIECE):
        if len(under_way) == AHEAD:
            peer.result(under_way.pop(0))
        chunk = data[offset:offset + PIECE]
        under_way.append(peer.send("exec.stdin", piece(exec_id, offset, chunk, eof=offset + len(chunk) == len(data), stream=stream)))
    for request in under_way:
        last = peer.result(request)
    assert last == {"accepted": len(data), "state": "eof"}


HOLDER = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rw")
calls = [("hello", {"client": "holder/1", "protocol": 1}), ("sandbox.ensure", {"key": json.loads(sys.argv[2]), "persistent": sys.argv[3] == "1"})]
for n, (method, params) in enumerate(calls):
    f.write(json.dumps({"jsonrpc": "2.0", "id": n, "method": method, "params": params}) + "\\n"); f.flush()
    while json.loads(f.readline()).get("id") != n: pass
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(daemon: Daemon, key: dict[str, str] = DEFAULT_KEY, *, persistent: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has ensured the sandbox and stays; killed at the end."""
    arguments = [sys.executable, "-c", HOLDER, str(daemon.socket), json.dumps(key), str(int(persistent))]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
        process.kill()
