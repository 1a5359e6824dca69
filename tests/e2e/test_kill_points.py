"""The daemon dies as by `kill -9` at every single write and every request of every operation of a sandbox's life; the next one finds
all of it again.

Requests are stopped by the emulated cloud, before or after they took effect; writes by a library that is preloaded into the daemon.
Each operation is repeated, dying one step later every time, until it gets through.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.kill_points import gets_through
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import living

OTHER = {"profile": "p", "task": "other"}
MOST_POINTS = 60  # an operation that takes more steps than this has run away


def ensure(peer: Peer, key: dict[str, str] = DEFAULT_KEY, **params: Any) -> dict[str, Any]:
    return peer.call("sandbox.ensure", {"key": key, **params})


def nothing(peer: Peer, emulator: Emulator) -> None:
    del peer, emulator


def running(peer: Peer, emulator: Emulator) -> None:
    del emulator
    peer.sh("echo kept >file")


def stopped(peer: Peer, emulator: Emulator) -> None:
    running(peer, emulator)
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})


def deleted_elsewhere(peer: Peer, emulator: Emulator) -> None:
    stopped(peer, emulator)
    emulator.delete_sandbox(peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["id"])


def for_one_session(peer: Peer, emulator: Emulator) -> None:
    del emulator
    ensure(peer, persistent=False)


def of_one_session_and_stopped(peer: Peer, emulator: Emulator) -> None:
    for_one_session(peer, emulator)
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})


def no_boot_succeeds(peer: Peer, emulator: Emulator) -> None:
    del peer
    emulator.config(boot_outcome="fail")


@dataclass(frozen=True)
class Operation:
    before: Callable[[Peer, Emulator], None]
    method: str
    params: dict[str, Any]
    requests: int  # it makes at the least
    keeps_files: bool  # whatever happens, `file` is there afterwards
    options: dict[str, Any]


KEY = {"key": DEFAULT_KEY}
OPERATIONS = {
    "create": Operation(nothing, "sandbox.ensure", KEY, 2, False, {}),
    "start": Operation(stopped, "sandbox.ensure", KEY, 3, True, {}),
    "stop": Operation(running, "sandbox.stop", KEY, 2, True, {}),
    "terminate": Operation(running, "sandbox.terminate", KEY, 1, False, {}),
    "replace one that was deleted": Operation(deleted_elsewhere, "sandbox.ensure", KEY, 3, False, {}),
    "release a session's": Operation(for_one_session, "sandbox.release", {**KEY, "mode": "terminate"}, 1, False, {}),
    "replace a session's that was stopped": Operation(of_one_session_and_stopped, "sandbox.ensure", {**KEY, "persistent": False}, 4, False, {}),
    "release and stop": Operation(running, "sandbox.release", {**KEY, "mode": "stop"}, 2, True, {}),
    "boots that fail, twice": Operation(no_boot_succeeds, "sandbox.ensure", KEY, 6, False, {}),
    "make room": Operation(running, "sandbox.ensure", {"key": OTHER}, 5, True, {"max_active": 1, "evict_min_idle": 0.01}),
}


class Scene:
    """One cloud with a stranger in it, and a daemon of its own for each point at which it dies."""

    def __init__(self, tmp_path: pathlib.Path, emulator: Emulator, operation: Operation) -> None:
        self._tmp_path, self.emulator, self.operation = tmp_path, emulator, operation
        emulator.config(max_active=20)
        self.stranger = emulator.create_running(tags={"owner": "deepinfra-sandboxd", "sandboxd_instance": "f" * 32})
        self._number = itertools.count()

    def daemon(self) -> Daemon:
        return Daemon(self._tmp_path / str(next(self._number)), self.emulator.url, **self.operation.options)

    def ours(self) -> list[str]:
        return [one["sandbox_id"] for one in living(self.emulator) if one["sandbox_id"] != self.stranger]

    def check(self, daemon: Daemon, where: str) -> None:
        """After the death: the next daemon, and what it makes of it."""
        emulator = self.emulator
        emulator.clear_faults()
        emulator.config(boot_outcome="ok")
        daemon.environment.pop("LD_PRELOAD", None)
        files = {one["sandbox_id"]: pathlib.Path(one["workspace"]) / "file" for one in living(emulator)}
        kept = [path for path in files.values() if path.exists()]
        with daemon.start().peer() as peer:
            wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", f"{where}: it has compared")
            shown = peer.status()
            assert shown["orphans"] == [] and not [item for item in shown["health"] if item["severity"] == "error"], where

            def settled() -> bool:
                known = {one["id"] for one in peer.status()["sandboxes"] if one["id"] is not None}
                return known == set(self.ours())

            wait_until(settled, f"{where}: each sandbox has its record, each record its sandbox")
            assert not self.operation.keeps_files or (kept and all(path.exists() for path in kept)), where
            # And it is in hand: nothing is left when nothing is wanted any more.
            for one in peer.status()["sandboxes"]:
                peer.call("sandbox.terminate", {"key": one["key"], "force": True})
            assert self.ours() == [], where
            assert all(one["state"] == "absent" for one in peer.status()["sandboxes"]), where
        daemon.kill()
        assert emulator.sandbox(self.stranger)["state"] == "running", where
        assert self.stranger not in emulator.stats()["by_sandbox"], where


@pytest.fixture
def scene(tmp_path: pathlib.Path, emulator: Emulator, request: pytest.FixtureRequest) -> Scene:
    return Scene(tmp_path, emulator, OPERATIONS[request.param])


@pytest.mark.parametrize("scene", OPERATIONS, indirect=True)
@pytest.mark.parametrize("how", [{"stall_before": True}, {"latency_after_ms": 600_000}], ids=["before it takes effect", "after"])
def test_killed_at_every_request(scene: Scene, how: dict[str, Any]) -> None:
    operation = scene.operation
    for point in range(MOST_POINTS):
        daemon = scene.daemon()
        with daemon.start().peer() as peer:
            operation.before(peer, scene.emulator)
            scene.emulator.fault(how, skip=point)
            asked = peer.send(operation.method, operation.params)
            through = gets_through(peer, scene.emulator, asked)
        daemon.kill()
        scene.check(daemon, f"request {point}")
        if through:
            assert point >= operation.requests
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("scene", OPERATIONS, indirect=True)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_write(scene: Scene, preload: pathlib.Path, when: str) -> None:
    operation = scene.operation
    for point in range(1, MOST_POINTS):
        daemon = scene.daemon()
        with daemon.start().peer() as peer:  # what comes before is not what is looked at
            operation.before(peer, scene.emulator)
        daemon.kill()
        daemon.environment |= {"LD_PRELOAD": str(preload), "KILL_AT_NAME": "state.json", "KILL_AT_COUNT": str(point), "KILL_AT_WHEN": when}
        died = False
        daemon.spawn()  # it may die at a write of its start
        wait_until(lambda daemon=daemon: daemon.accepts() or not daemon.alive(), "it listens, or is dead")
        try:
            with daemon.peer() as peer:
                peer.call(operation.method, operation.params)
        except RpcFailure as failed:
            assert failed.name == "boot_failed"
        except (ConnectionError, TimeoutError, FileNotFoundError):
            died = True
        if died:
            wait_until(lambda: not daemon.alive(), "it is dead")
        daemon.kill()
        scene.check(daemon, f"write {point}")
        if not died:
            assert point > 2  # each writes once at the least
            return
    raise AssertionError("it never ends")
