"""Where the shim cannot run: the platform's own attached exec, and what it cannot do, said as it is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.emulator import Emulator, wait_until
from support.rpc import Peer, b64
from support.scenes import EXEC, appears, only_id, processes, without_shim, workspace

LINE = "echo x >>/workspace/n; echo out; exit 3"


@pytest.fixture
def attached(peer: Peer, emulator: Emulator) -> Iterator[Peer]:
    without_shim(emulator)
    peer.sh("true")
    emulator.reset_stats()
    yield peer
    emulator.clear_faults()
    ended = peer.sh("echo sound")
    assert (ended.returncode, ended.stdout) == (0, b"sound\n")


def lines(emulator: Emulator) -> int:
    path = workspace(emulator) / "n"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_command_runs_and_is_one_request(attached: Peer, emulator: Emulator) -> None:
    ended = attached.sh("echo out; echo err >&2; cat; pwd; exit 3", stdin="in\n", env={"A": "1"})
    assert (ended.reason, ended.returncode, ended.stdout, ended.stderr) == ("exited", 3, b"out\nin\n/workspace\n", b"err\n")
    assert emulator.count(EXEC) == 1
    assert not any("/shim-" in " ".join(one["argv"]) for one in emulator.commands())


def test_health_says_so(attached: Peer, emulator: Emulator) -> None:
    told = [item for item in attached.call("daemon.health")["health"] if item["code"] == "shim_unusable"]
    assert len(told) == 1 and told[0]["severity"] == "warning"
    assert only_id(emulator) in told[0]["text"] and "126" in told[0]["text"]
    for limit in ("found again", "30 minutes", "one client", "stdin", "UTF-8", "background", "pushed"):
        assert limit in told[0]["text"]


def test_the_first_command_is_not_lost_to_the_attempt(peer: Peer, emulator: Emulator) -> None:
    without_shim(emulator)
    for name in [peer.start("/bin/sh", "-c", LINE) for _ in range(5)]:
        ended = peer.finish(name)
        assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 3, b"out\n")
    assert lines(emulator) == 5
    assert emulator.count(EXEC) == 6  # tried once


def test_altered_output_is_said(attached: Peer) -> None:
    ended = attached.sh(r"printf 'a\377b'")
    assert ended.stdout == "a\ufffdb".encode() and "cannot run the shim" in ended.message and "U+FFFD" in ended.message
    assert attached.sh("printf €").message is None


@pytest.mark.parametrize("size", [100, 200000])
def test_arguments_and_input_arrive(attached: Peer, emulator: Emulator, size: int) -> None:
    data = os.urandom(size)
    ended = attached.sh('printf %s "$1" >arg; cat >in; exit 4', stdin=b64(data))
    assert ended.returncode == 4
    assert (workspace(emulator) / "in").read_bytes() == data
    ended = attached.run("/bin/sh", "-c", 'printf %s "$1" >arg', "sh", b64(b"a\xff'\n"))  # type: ignore[arg-type]
    assert (workspace(emulator) / "arg").read_bytes() == b"a\xff'\n"


def test_a_missing_directory_is_said(attached: Peer) -> None:
    ended = attached.run("pwd", cwd="/nowhere")
    assert (ended.returncode, ended.stdout) == (0, b"/workspace\n")
    assert b"/nowhere is not there" in ended.stderr


@pytest.mark.parametrize("action", [{"cut_after_lines": 1, "how": "fin"}, {"cut_after_bytes": 0, "how": "rst"}, {"omit_terminal": True},
                                    {"act_then_drop": "done"}, {"status": 502, "body": ""}, {"terminal": '{"returncode": null}'}], ids=str)
def test_a_broken_stream_is_lost_and_never_run_again(attached: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    emulator.fault_exec(action)
    ended = attached.sh(LINE)
    assert (ended.reason, ended.returncode) == ("lost", None)
    assert (ended.error["name"], ended.error["retryable"]) == ("outcome_unknown", False)
    assert "status" not in action or lines(emulator) == 0
    if "status" not in action:
        wait_until(lambda: lines(emulator), "it ran")
    assert (emulator.count(EXEC), lines(emulator)) == (1, 0 if "status" in action else 1)


def test_the_platforms_word_about_it_counts(attached: Peer, emulator: Emulator) -> None:
    emulator.fault_exec({"terminal": '{"error": "output too large"}'})
    ended = attached.sh(LINE)
    assert (ended.reason, ended.returncode, ended.started) == ("failed", None, "yes")
    assert "too large" in ended.message
    emulator.config(signal_returncode="negative")
    assert attached.sh("kill -9 $$").returncode == -9


def test_a_cancel_ends_the_tree(attached: Peer, emulator: Emulator) -> None:
    exec_id = attached.start("/bin/sh", "-c", "echo out; setsid sleep 600 & sleep 601 & touch up; sleep 602")
    appears(workspace(emulator) / "up")
    assert attached.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = attached.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("cancelled", 130, b"out\n")
    assert not any("sleep 60" in line for line in processes(emulator))


def test_a_time_out_is_punctual(attached: Peer, emulator: Emulator) -> None:
    begun = time.monotonic()
    ended = attached.sh("echo out; sleep 600", timeout_s=1)
    assert (ended.reason, ended.returncode, ended.stdout) == ("timed_out", 124, b"out\n")
    assert 0.9 < time.monotonic() - begun < 4
    assert not any("sleep 600" in line for line in processes(emulator))


def test_a_lost_command_goes_on_and_can_still_be_ended(attached: Peer, emulator: Emulator) -> None:
    emulator.fault_exec({"cut_after_lines": 1, "how": "rst"})
    exec_id = attached.start("/bin/sh", "-c", "echo out; echo x >>n; sleep 600")
    ended = attached.finish(exec_id)
    assert (ended.reason, ended.returncode) == ("lost", None)
    assert "may still be running" in ended.message
    wait_until(lambda: any("sleep 600" in line for line in processes(emulator)), "it goes on")
    assert attached.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    assert not any("sleep 600" in line for line in processes(emulator))


def test_a_platform_that_waits_for_the_background(attached: Peer, emulator: Emulator) -> None:
    """What keeps the output open holds up the attached form: it ends with the platform's stream, or with the time-out, which is
    punctual and takes the background along."""
    emulator.config(waits_for_children=True)
    begun = time.monotonic()
    ended = attached.run(script="sleep 601 & echo ok", timeout_s=1)
    assert (ended.stdout, ended.reason, ended.returncode) == (b"ok\n", "timed_out", 124)
    assert time.monotonic() - begun < 5
    assert not any("sleep 601" in line for line in processes(emulator))


def test_what_is_lost_is_ended_in_time_all_the_same(attached: Peer, emulator: Emulator) -> None:
    emulator.config(on_disconnect="keep")
    emulator.fault_exec({"cut_after_lines": 1})
    exec_id = attached.start("/bin/sh", "-c", "echo up; sleep 600; :", timeout_s=3)
    assert attached.finish(exec_id).reason == "lost"
    assert any("sleep 600" in line for line in processes(emulator))
    wait_until(lambda: not any("sleep 600" in line for line in processes(emulator)), "its time is over", 10)


def test_that_it_waits_for_all_of_its_stdin_is_said(attached: Peer) -> None:
    exec_id = attached.start("cat", stdin_open=True)
    while "stdin" not in attached.notification("sandbox.progress")["text"]:
        pass
    attached.call("exec.stdin", {"exec_id": exec_id, "stream": "stdin", "offset": 0, **{"data_b64": b64(b"all")["b64"]}, "eof": True})
    assert attached.finish(exec_id).stdout == b"all"
