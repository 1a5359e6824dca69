"""cases.md 1 to 10, each in the middle of trouble: connections break while the command runs, on platforms that keep the process
group of a dropped exec and on platforms that kill it. What each test is about must come out as if nothing had happened.

The same without trouble, and single faults one by one, are in the other test_exec files.
"""

from __future__ import annotations

import hashlib
import pathlib
import random
import time
from typing import Any

import pytest

from support.cli import running
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.memory import bounded
from support.rpc import Exit, Peer, b64
from support.scenes import EXEC, appears, living, pour, processes, workspace

# Waits in a command until the test has broken the connections.
GATE = "touch /workspace/up; until [ -e /workspace/go ]; do sleep 0.01; done; rm /workspace/up /workspace/go; "


pytestmark = pytest.mark.usefixtures("on_disconnect")


@pytest.fixture
def warm(peer: Peer) -> Peer:
    peer.sh("true")
    return peer


def broken_at_gate(emulator: Emulator) -> None:
    """Breaks every connection while a command waits at its GATE, and lets it go on."""
    appears(workspace(emulator) / "up")
    emulator.drop_connections("rst")
    (workspace(emulator) / "go").touch()


def through_trouble(peer: Peer, emulator: Emulator, script: str, **how: Any) -> Exit:
    exec_id = peer.start(script=GATE + script, **how)
    broken_at_gate(emulator)
    return peer.finish(exec_id)


def lines(emulator: Emulator) -> int:
    return len((workspace(emulator) / "n").read_text().splitlines())


@pytest.mark.parametrize("script", ["setsid sleep 600 >/tmp/l 2>&1 </dev/null & disown; echo ok", "sleep 600 & echo ok"])
def test_case_1_the_background(warm: Peer, emulator: Emulator, script: str) -> None:
    begun = time.monotonic()
    ended = through_trouble(warm, emulator, script)
    assert (ended.stdout, ended.returncode) == (b"ok\n", 0)
    assert time.monotonic() - begun < 3
    wait_until(lambda: warm.sh("pgrep -x sleep").returncode == 0, "it lives on")
    wait_until(lambda: all(one["outcome"] != "open" for one in emulator.requests()), "no stream is left open")


def test_case_2_an_end_without_an_end(warm: Peer, emulator: Emulator) -> None:
    """Of the first answer, and of every attempt to find the command again."""
    for how in ("fin", "rst"):
        for place in ({"omit_terminal": True}, {"cut_after_lines": 1}, {"cut_after_lines": 0}):
            emulator.fault_exec({**place, "how": how})
    ended = through_trouble(warm, emulator, "echo x >>/workspace/n; echo out; exit 3")
    assert (ended.reason, ended.returncode, ended.started, ended.stdout) == ("exited", 3, "yes", b"out\n")
    assert lines(emulator) == 1


def test_case_3_cut_at_every_byte(warm: Peer, emulator: Emulator, on_disconnect: str) -> None:
    """The stream of a command that prints characters of every width, broken off after each of its bytes: after every other one on
    either platform. Five sandboxes, so that a fault meets the command it is meant for."""
    script = "echo x >>/workspace/n; printf 'ASCII € 😀 ü'; printf '€' >&2; exit 4"
    keys = [{"profile": "default", "task": name} for name in ("default", "a", "b", "c", "d")]
    ids = [warm.call("sandbox.ensure", {"key": key, "persistent": True})["sandbox"]["id"] for key in keys]
    for key in keys:
        warm.sh("true", key=key)
    shim = next(pathlib.Path(emulator.sandbox(ids[0])["workspace"]).glob(".deepinfra-sandboxd/shim-*")).name
    length = 50 + len(emulator.exec(ids[0], f"/workspace/.deepinfra-sandboxd/{shim}", "run", "measured", "--", "bash", "-c", script).body)
    places = list(range(on_disconnect == "keep", length, 2))
    for first in range(0, len(places), len(keys)):
        running = []
        for key, sandbox_id, place in zip(keys, ids, places[first:], strict=False):
            emulator.fault_exec({"cut_after_bytes": place, "how": "rst" if place % 4 < 2 else "fin"}, sandbox_id=sandbox_id)
            running.append(warm.start(script=script, key=key))
        for name in running:
            ended = warm.finish(name)
            assert (ended.reason, ended.returncode, ended.stdout.decode(), ended.stderr.decode()) == ("exited", 4, "ASCII € 😀 ü", "€"), ended
    ran = sum(len((pathlib.Path(emulator.sandbox(each)["workspace"]) / "n").read_text().splitlines()) for each in ids)
    assert ran == 1 + len(places)


def test_case_3_characters_cut_between_reads(warm: Peer, emulator: Emulator) -> None:
    emulator.config(chunk_bytes=1, split_characters="replace")
    text = "€uro and 😀, " * 20
    emulator.fault_exec({"cut_after_lines": 500, "how": "rst"})
    ended = through_trouble(warm, emulator, f"printf '%s' '{text}'; exit 4")
    assert (ended.stdout.decode(), ended.returncode) == (text, 4)


def test_case_4_bytes_that_are_no_text(warm: Peer, emulator: Emulator) -> None:
    every = bytes(range(256))
    ended = through_trouble(warm, emulator, r"printf '\203\377'; cat; exit 4", stdin=b64(every * 300))
    assert (ended.returncode, ended.stdout) == (4, b"\x83\xff" + every * 300)


@pytest.mark.parametrize("size, print_it", [(2 << 30, "yes"), (128 << 20, "base64 -w0 /dev/urandom")], ids=["repeating", "noise"])
def test_case_5_huge_output(warm: Peer, emulator: Emulator, daemon: Daemon, size: int, print_it: str) -> None:
    """Two gibibytes of text that shrinks on its way; and noise, which does not. A connection is cut in the middle."""
    warm.sh(f"{print_it} | head -c {4 << 20} >block")
    block = (workspace(emulator) / "block").read_bytes()
    with bounded(daemon), running(daemon, "exec", "--", "sh", "-c", f"while cat block; do :; done | head -c {size}; exit 3") as process:
        assert process.stdout is not None
        read = 0
        while piece := process.stdout.read(len(block)):
            assert piece == block[: len(piece)]
            read += len(piece)
            if read == 8 * len(block):
                emulator.drop_connections("rst")
        assert (read, process.wait(10)) == (size, 3)


def test_case_5_a_flood_ends_in_time(warm: Peer, emulator: Emulator) -> None:
    begun = time.monotonic()
    ended = through_trouble(warm, emulator, "yes", timeout_s=1.5, window=1 << 16)
    assert (ended.reason, ended.returncode) == ("timed_out", 124)
    assert 1.3 < time.monotonic() - begun < 8
    assert not any(line.startswith("yes") for line in processes(emulator))


TREE = "import subprocess\nprint('partial', flush=True)\nsubprocess.run(['sleep', '600'])"


def test_case_6_a_time_out_while_the_platform_cannot_be_reached(warm: Peer, emulator: Emulator) -> None:
    """The runner has the clock: the tree is dead in time, and the daemon hears of it when it can."""
    exec_id = warm.start("python3", "-c", TREE, timeout_s=1.5)
    assert warm.notification("exec.output", exec_id=exec_id)["data"] == "partial\n"
    begun = time.monotonic()
    emulator.config(accept_mode="refuse")
    emulator.drop_connections("rst")
    wait_until(lambda: not any("sleep 600" in line for line in processes(emulator)), "nothing is left", 5)
    assert time.monotonic() - begun < 4
    emulator.config(accept_mode="normal")
    ended = warm.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.started) == ("timed_out", 124, "yes")


def test_cases_6_and_7_a_cancel_of_one_command_alone(warm: Peer, emulator: Emulator) -> None:
    warm.sh("(while :; do echo tick; sleep 0.02; done) >/workspace/ticks 2>&1 </dev/null &")
    ticks = workspace(emulator) / "ticks"
    appears(ticks)
    exec_id = warm.start("python3", "-c", TREE)
    assert warm.notification("exec.output", exec_id=exec_id)["data"] == "partial\n"
    emulator.drop_connections("rst")
    begun = time.monotonic()
    assert warm.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    assert time.monotonic() - begun < 2
    ended = warm.finish(exec_id)
    assert (ended.reason, ended.returncode) == ("cancelled", 130)
    assert not any("sleep 600" in line for line in processes(emulator))
    seen = ticks.stat().st_size
    wait_until(lambda: ticks.stat().st_size > seen, "the bystander goes on")
    assert [one["state"] for one in living(emulator)] == ["running"]


def test_case_6_a_client_that_goes_and_another_one_that_comes(warm: Peer, emulator: Emulator, daemon: Daemon) -> None:
    """While nobody is there, the connections to the platform break as well."""
    with daemon.peer() as first:
        exec_id = first.start(script="echo one; " + GATE + "echo two; sleep 0.2; echo three; exit 5")
        assert first.notification("exec.output", exec_id=exec_id)["data"] == "one\n"
    broken_at_gate(emulator)
    assert warm.call("exec.attach", {"exec_id": exec_id, "offset": 0})["attached"]
    ended = warm.finish(exec_id)
    assert (ended.returncode, ended.stdout) == (5, b"one\ntwo\nthree\n")


@pytest.mark.parametrize("script, code, stdout", [
    ("cat <<EOF\nhello $((1+1))\nEOF", 0, b"hello 2\n"), ("true # c", 0, b""), ("set -euo pipefail; true", 0, b""), ("exit 3", 3, b""),
    ("exec true", 0, b""), ("trap 'echo bye' EXIT; echo hi", 0, b"hi\nbye\n")])
def test_case_8_scripts_that_could_confuse_a_wrapper(warm: Peer, emulator: Emulator, script: str, code: int, stdout: bytes) -> None:
    ended = through_trouble(warm, emulator, script)
    assert (ended.returncode, ended.stdout) == (code, stdout)


def test_case_9_no_hidden_limit(warm: Peer, emulator: Emulator) -> None:
    """Neither the platform's default of 60 s (here a fifth of a second) nor what it does to a connection."""
    emulator.config(default_timeout_s=0.2)
    ended = through_trouble(warm, emulator, "sleep 1; echo fine", timeout_s=300)
    assert (ended.returncode, ended.stdout) == (0, b"fine\n")


@pytest.mark.parametrize("kill", ["group", "none"])
@pytest.mark.parametrize("outcome", ["error", "returncode", "cut"])
def test_case_9_the_cap_of_thirty_minutes(warm: Peer, emulator: Emulator, outcome: str, kill: str) -> None:
    """Here 0.3 seconds: it meets followers again and again, and no command."""
    emulator.config(command_cap_s=0.3, cap_outcome=outcome, cap_kill=kill)
    ended = through_trouble(warm, emulator, "echo x >>n; for i in 1 2 3 4 5; do echo $i; sleep 0.3; done; exit 7")
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 7, b"1\n2\n3\n4\n5\n")
    assert lines(emulator) == 1


def test_case_9_a_time_out_of_a_stalled_stream(warm: Peer, emulator: Emulator) -> None:
    emulator.fault_exec({"stall_after_bytes": 300}, times=0)
    begun = time.monotonic()
    ended = warm.run(script="echo out; sleep 600", timeout_s=1)
    assert (ended.reason, ended.returncode) == ("timed_out", 124)
    assert 0.9 < time.monotonic() - begun < 6
    assert not any("sleep 600" in line for line in processes(emulator))


@pytest.mark.parametrize("size", [131_073, 700_000])
def test_case_10_content_of_any_size(warm: Peer, emulator: Emulator, size: int) -> None:
    marker = b"EOF\r\nEOF\n'\"$(id)\\"
    data = (marker * (size // len(marker) + 1))[:size]  # CRLF, the heredoc's own marker, no final newline
    for place in ({"cut_after_bytes": 200}, {"act_then_drop": "started"}, {"omit_terminal": True}):
        emulator.fault_exec({**place, "how": "rst"})
    ended = through_trouble(warm, emulator, "sha256sum; exit 3", stdin=b64(data))
    assert (ended.stdout.split()[0].decode(), ended.returncode) == (hashlib.sha256(data).hexdigest(), 3)


def test_case_10_a_script_of_any_size(warm: Peer, emulator: Emulator) -> None:
    script = "echo x >>/workspace/n\ncat <<'EOF' | sha256sum\n" + "a line\r\n" * 50_000 + "EOF\nexit 6"
    expected = hashlib.sha256(b"a line\r\n" * 50_000).hexdigest()
    emulator.fault_exec({"act_then_drop": "started", "how": "rst"})
    emulator.fault_exec({"cut_after_lines": 0, "how": "rst"})
    ended = warm.run(script=script)
    assert (ended.stdout.split()[0].decode(), ended.returncode) == (expected, 6)
    assert lines(emulator) == 1
    assert emulator.count(EXEC) >= 3


def test_case_10_megabytes_of_stdin_and_script(warm: Peer, emulator: Emulator) -> None:
    """In pieces, while every sixth request is broken off in the middle of its work."""
    data = random.Random(10).randbytes(5_000_000)
    script = b"echo x >>/workspace/n; : <<'EOF'\n" + b"filling\r\n" * 500_000 + b"EOF\nsha256sum; exit 6"
    for n in range(6):
        emulator.fault({"act_then_drop": True}, method="PUT", skip=5 * n)
        emulator.fault_exec({"cut_after_bytes": 200, "how": "rst"}, skip=5 * n)
    exec_id = warm.start(script_size=len(script), stdin_open=True)
    pour(warm, exec_id, script, stream="script")
    pour(warm, exec_id, data)
    ended = warm.finish(exec_id)
    assert (ended.stdout.split()[0].decode(), ended.returncode) == (hashlib.sha256(data).hexdigest(), 6), ended.stderr
    assert lines(emulator) == 1
