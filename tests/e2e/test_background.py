"""Work in the background: it keeps its sandbox awake for a while, and status says so."""

from __future__ import annotations

import os
import pathlib
import signal
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.clocks import Clocks
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import EXEC, LIST, STOP, living, only_id, without_shim

OTHER = {"profile": "p", "task": "other"}
DAY_S = 86_400
JOB = "sleep 600 >/dev/null 2>&1 </dev/null &"
Make = Callable[..., Daemon]


def sandbox(peer: Peer) -> dict[str, Any]:
    found: dict[str, Any] = peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]
    return found


def stopped(emulator: Emulator) -> bool:
    return [one["state"] for one in living(emulator)] == ["stopped"]


@pytest.fixture
def hasty(make_daemon: Make) -> Iterator[Peer]:
    with make_daemon(idle_stop=0.3, background_max=600).start().peer() as peer:
        yield peer


def test_a_job_keeps_its_sandbox_until_it_ends(hasty: Peer, emulator: Emulator) -> None:
    """cases.md 13."""
    hasty.sh(f"{JOB} echo $! >/workspace/pid")
    begun = time.monotonic()
    shown = wait_until(lambda: "in the background" in (sandbox(hasty)["awake_because"] or "") and sandbox(hasty), "it is known")
    assert "1 process of" in shown["awake_because"] and shown["state"] == "running" and shown["running"] == []
    wait_until(lambda: sandbox(hasty)["idle_s"] > 1.5, "it has been idle for many times the limit")
    assert time.monotonic() - begun < 20 and emulator.count(STOP) == 0
    hasty.sh("kill $(cat /workspace/pid)")
    wait_until(lambda: sandbox(hasty)["state"] == "stopped", "it is stopped")
    wait_until(lambda: sandbox(hasty)["awake_because"] is None, "and that is all")


def test_but_not_for_ever(make_daemon: Make, emulator: Emulator) -> None:
    with make_daemon(idle_stop=0.2, background_max=1.2).start().peer() as peer:
        peer.sh(JOB)
        begun = time.monotonic()
        wait_until(lambda: stopped(emulator), "it is stopped")
        assert time.monotonic() - begun > 1.0


def test_who_asks_last_says_how_long_an_idle_sandbox_runs(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(idle_stop=0.3).start()
    with daemon.peer() as peer:
        shown = peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "idle_stop_s": 30})["sandbox"]
        assert shown["idle_stop_s"] == 30
        peer.sh("true")  # what does not ask leaves it as it is
        wait_until(lambda: sandbox(peer)["idle_s"] > 1.5, "it has been idle for many times the limit")
        assert re.search("stops in 2[0-9] s", sandbox(peer)["awake_because"] or "") and emulator.count(STOP) == 0
    daemon.kill()
    daemon.start()
    with daemon.peer() as peer:
        wait_until(lambda: (sandbox(peer)["idle_s"] or 0) > 1.5, "the next daemon keeps to it")
        assert sandbox(peer)["idle_stop_s"] == 30 and emulator.count(STOP) == 0
        requests = emulator.stats()["total"]
        shown = peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "idle_stop_s": 0})["sandbox"]
        assert "idle_stop_s" not in shown and emulator.stats()["total"] == requests
        wait_until(lambda: stopped(emulator), "the daemon's own limit counts again", 3)


def test_a_new_sandbox_has_not_the_time_of_the_one_before(peer: Peer, emulator: Emulator) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "idle_stop_s": 3600})
    peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    assert "idle_stop_s" not in peer.call("sandbox.ensure", {"key": DEFAULT_KEY})["sandbox"]
    peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    emulator.fault({"status": 402}, **{"method": "POST", "route": "/v1/sandboxes"})
    with pytest.raises(RpcFailure):
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "idle_stop_s": 3600})
    peer.sh("true")
    assert "idle_stop_s" not in sandbox(peer)


def test_one_that_leaves_nothing_behind_is_stopped_in_time(hasty: Peer, emulator: Emulator) -> None:
    hasty.sh("sleep 0.01 & wait")
    wait_until(lambda: stopped(emulator), "it is stopped", 3)


def test_where_it_cannot_be_known_that_is_said(make_daemon: Make, emulator: Emulator) -> None:
    with make_daemon(idle_stop=600, evict_min_idle=0.05, max_active=1).start().peer() as peer:
        without_shim(emulator)
        peer.sh(JOB)
        wait_until(lambda: sandbox(peer)["idle_s"] > 0.1, "it is idle")
        other = peer.send("sandbox.ensure", {"key": {"profile": "p", "task": "other"}})  # asks what runs there
        assert peer.result(other)["created"]  # nothing proves that it is used
        assert sandbox(peer)["state"] == "stopped"


def test_a_question_without_an_answer_is_no_answer(hasty: Peer, emulator: Emulator) -> None:
    hasty.sh(JOB)
    emulator.fault_exec({"status": 502, "body": "<html>"}, times=2)
    emulator.fault_exec({"act_then_status": {"status": 200, "body": '{"stdout": "deepinfra-shim/1 ps build=x\\n"}\n{"returncode": 0}\n'}})
    wait_until(lambda: all(fault["used"] == fault["times"] for fault in emulator.faults()), "the shim was asked in vain")
    wait_until(lambda: "in the background" in (sandbox(hasty)["awake_because"] or ""), "it was asked again")
    assert emulator.count(STOP) == 0


def test_a_shim_that_is_gone_is_put_back(hasty: Peer, emulator: Emulator) -> None:
    hasty.sh(f"{JOB} rm -rf /workspace/.deepinfra-sandboxd")
    wait_until(lambda: "1 process" in (sandbox(hasty)["awake_because"] or ""), "it is known all the same")
    assert emulator.count(STOP) == 0


def test_one_that_was_never_used_is_asked_and_stopped(hasty: Peer, emulator: Emulator) -> None:
    hasty.call("sandbox.ensure", {"key": DEFAULT_KEY})
    wait_until(lambda: stopped(emulator), "it is stopped")
    assert emulator.count(EXEC) > 0


def test_a_stopped_daemon_makes_nothing_look_idle(make_daemon: Make, emulator: Emulator) -> None:
    """SIGSTOP for much longer than the idle limit; a machine that sleeps is the same to it."""
    daemon = make_daemon(idle_stop=3).start()
    with daemon.peer() as peer:
        peer.sh("true")
        os.kill(daemon.pid, signal.SIGSTOP)
        time.sleep(4)  # the time that must not count
        os.kill(daemon.pid, signal.SIGCONT)
        assert sandbox(peer)["idle_s"] < 2.5
        assert emulator.count(STOP) == 0 and living(emulator)[0]["state"] == "running"
        wait_until(lambda: stopped(emulator), "its time comes all the same")


@pytest.mark.parametrize("move, seconds", [("set", 30 * DAY_S), ("set", -30 * DAY_S), ("sleep", DAY_S // 2)])
def test_no_clock_makes_anything_look_idle_or_old(
    make_daemon: Make, emulator: Emulator, tmp_path: pathlib.Path, move: str, seconds: int
) -> None:
    """The machine's clock is set while something rests for a moment; or the machine sleeps, which the cloud does not."""
    daemon = make_daemon(idle_stop=2, retention="3d")
    clocks = Clocks(tmp_path, daemon)
    with daemon.start().peer() as peer:
        peer.call("sandbox.ensure", {"key": OTHER})
        peer.call("sandbox.stop", {"key": OTHER})
        peer.sh("true")
        begun = time.monotonic()
        getattr(clocks, move)(seconds)
        emulator.config(date_offset_s=seconds if move == "sleep" else 0)
        peer.call("account.set", {"api_key": "test-key"})  # has it look how old they are
        wait_until(lambda: sandbox(peer)["state"] == "stopped", "its time comes all the same")
        assert time.monotonic() - begun > 1.9
        if move == "set" and seconds > 0:  # so that they would be old
            wait_until(lambda: time.monotonic() - begun > 10.5, "two looks are far enough apart to delete one", 15)
            looks = emulator.count(LIST)
            peer.call("account.set", {"api_key": "test-key"})
            wait_until(lambda: emulator.count(LIST) > looks, "it has looked again")
        peer.call("plan.list")
        clock = [item["text"] for item in peer.call("daemon.health")["health"] if item["code"] == "clock"]
        assert len(clock) == (1 if move == "set" else 0)
        assert [one["state"] for one in living(emulator)] == ["stopped", "stopped"]


def test_a_command_keeps_the_platform_from_taking_it_for_idle(make_daemon: Make, emulator: Emulator) -> None:
    """Something finishes at least every third of server-timeout while anything runs, with the shim and without it."""
    daemon = make_daemon(server_timeout=3).start()
    with daemon.peer() as peer:
        for bare in (False, True):
            if bare:
                peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
                without_shim(emulator)
                peer.sh("true")
            ended = peer.sh("sleep 7; echo lived")
            assert (ended.reason, ended.stdout) == ("exited", b"lived\n"), ended.message
            assert sandbox(peer)["generation"] == 1 + bare
            wait_until(lambda: emulator.sandbox(only_id(emulator))["state"] == "stopped", "unused, the platform stops it")
