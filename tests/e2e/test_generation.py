"""What is asked for one generation of a sandbox runs in that boot or not at all, and starts nothing."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Exit, Peer, RpcFailure
from support.scenes import CREATE, START, TWO_PARTS, only_id, ran, workspace


def generation(peer: Peer) -> int:
    number: int = peer.call("sandbox.ensure", {"key": DEFAULT_KEY})["generation"]
    return number


def state(peer: Peer) -> str:
    text: str = peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["state"]
    return text


def refused(ended: Exit) -> bool:
    return ended.error is not None and ended.error["name"] == "generation_changed" and ended.started == "no"


def test_in_its_generation_a_command_costs_what_any_other_does(peer: Peer, emulator: Emulator) -> None:
    number = generation(peer)
    assert peer.sh("true").returncode == 0
    before = emulator.stats()["total"]
    ended = peer.sh("echo here", generation=number)
    assert (ended.returncode, ended.stdout, ended.generation, ended.recreated) == (0, b"here\n", number, False)
    assert emulator.stats()["total"] == before + 1


@pytest.mark.parametrize("fate", ["stop_sandbox", "delete_sandbox"])
def test_what_became_of_the_sandbox_is_learnt_from_the_platforms_answer(
    peer: Peer, emulator: Emulator, fate: str
) -> None:
    number = generation(peer)
    assert peer.sh("true").returncode == 0
    sandbox = only_id(emulator)
    getattr(emulator, fate)(sandbox)
    assert state(peer) == "running"  # as far as the daemon knows
    ended = peer.sh("touch /workspace/ran", generation=number)
    assert refused(ended) and "has not run" in ended.message and "sandbox.ensure" in ended.error["hint"]
    assert (emulator.count(CREATE), emulator.count(START)) == (1, 0)
    if fate == "stop_sandbox":  # the daemon looks by itself, since nobody else may ever
        wait_until(lambda: state(peer) == "stopped", "it is known to be stopped")
        assert emulator.state(sandbox) == "stopped"
        assert not (workspace(emulator) / "ran").exists()
    assert refused(peer.sh("true", generation=number))
    assert generation(peer) == number + 1
    ended = peer.sh("ls /workspace", generation=number + 1)
    assert (ended.returncode, ended.stdout, ended.recreated) == (0, b"", False)


def test_what_is_known_to_be_stopped_or_another_boot_costs_no_request(peer: Peer, emulator: Emulator) -> None:
    number = generation(peer)
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    emulator.reset_stats()
    assert refused(peer.sh("true", generation=number))
    assert emulator.stats()["total"] == 0
    assert generation(peer) == number + 1
    emulator.reset_stats()
    assert refused(peer.sh("true", generation=number)) and refused(peer.sh("true", generation=number + 2))
    assert emulator.stats()["total"] == 0


def test_of_a_key_without_a_sandbox_none_is_made(peer: Peer, emulator: Emulator) -> None:
    assert refused(peer.sh("true", generation=1))
    assert emulator.sandboxes() == []


def test_it_waits_for_what_is_being_done_and_then_decides(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    number = generation(peer)
    emulator.config(stop_ms=300)
    with daemon.peer() as other:
        stopping = other.send("sandbox.stop", {"key": DEFAULT_KEY})
        wait_until(lambda: state(peer) == "stopping", "it is being stopped")
        assert refused(peer.sh("true", generation=number))
        other.result(stopping)
    assert emulator.count(START) == 0


def test_an_id_that_is_known_attaches_whatever_number_comes_with_it(
    peer: Peer, daemon: Daemon, emulator: Emulator, how: str
) -> None:
    number = generation(peer)
    request: dict[str, Any] = {"exec_id": "known", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", TWO_PARTS]}
    peer.call("exec.start", {**request, "generation": number})
    assert peer.output("known", 6) == b"first\n"
    with daemon.peer() as other:
        assert other.call("exec.start", {**request, "generation": number + 7, "offset": 6})["attached"]
    getattr(daemon, how)()
    daemon.start()
    with daemon.peer() as other:
        assert other.call("exec.start", {**request, "generation": number, "resume": True, "offset": 6})["attached"]
        (workspace(emulator) / "go").touch()
        assert other.finish("known").returncode == 3
    assert ran(emulator) == 1


@pytest.mark.parametrize("method", ["fs.pull", "fs.get"])
def test_files_are_fetched_from_that_generation_only(
    peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, method: str
) -> None:
    number = generation(peer)
    assert peer.sh("echo kept > /workspace/file").returncode == 0
    target = tmp_path / "fetched"
    params = {"key": DEFAULT_KEY, "remote": "/workspace/file", "host": str(target), "generation": number}
    peer.call(method, params)
    assert b"kept\n" in target.read_bytes()
    target.unlink()
    emulator.stop_sandbox(only_id(emulator))
    for _ in range(2):  # learnt from the platform, then known
        with pytest.raises(RpcFailure) as caught:
            peer.call(method, params)
        assert caught.value.name == "generation_changed" and not target.exists()
    assert emulator.count(START) == 0
    assert peer.call(method, {**params, "generation": generation(peer)})["files"] == 1


def test_a_number_that_makes_no_sense_is_refused_before_anything_happens(peer: Peer, emulator: Emulator) -> None:
    for wrong in (0, -1, "1", 1.5, None):
        params = {"exec_id": "wrong", "key": DEFAULT_KEY, "argv": ["true"], "generation": wrong}
        peer.send_wrong({"jsonrpc": "2.0", "id": 7, "method": "exec.start", "params": params})
        answer = peer.read()
        assert answer["error"]["data"]["name"] == "invalid_params" and "generation" in answer["error"]["message"]
    assert emulator.sandboxes() == []
