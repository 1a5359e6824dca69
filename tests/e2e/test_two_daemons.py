"""Two daemons, a stranger's sandboxes and a cloud with moods, on one account: a thousand random operations, and nobody touches what is
not its own. And commands that race with operations on their very key.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import Peer
from support.scenes import living

ROUNDS, AT_ONCE = 125, 4  # on each of the two daemons
TASKS = ["default", "a", "b", "c"]

MOODS: list[tuple[dict[str, Any], str, str]] = [
    ({"act_then_drop": True}, "POST", "/v1/sandboxes"),
    ({"act_then_status": 504}, "POST", "/v1/sandboxes"),
    ({"status": 409, "body": '{"detail": "wrong state"}'}, "POST", "/v1/sandboxes/{id}/stop"),
    ({"act_then_drop": True}, "POST", "/v1/sandboxes/{id}/stop"),
    ({"status": 502, "body": "<html>"}, "POST", "/v1/sandboxes/{id}/start"),
    ({"act_then_status": 500}, "POST", "/v1/sandboxes/{id}/start"),
    ({"act_then_drop": True}, "DELETE", "/v1/sandboxes/{id}"),
    ({"status": 502, "body": "<html>"}, "GET", "/v1/sandboxes/{id}"),
]


def instance_of(one: dict[str, Any]) -> str:
    name: str = one["tags"].get("sandboxd_instance", "")
    return name


class Side:
    """One of the daemons, and what its user believes."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.peer: Peer = daemon.start().peer(limit_s=120)
        self.instance = self.peer.status()["daemon"]["instance"]

    def act(self, dice: random.Random) -> list[tuple[str, int | None]]:
        """Operations on different keys, all under way at once."""
        sent = []
        for task in dice.sample(TASKS, AT_ONCE):
            key = {"profile": "p", "task": task}
            method = dice.choice(["sandbox.ensure", "sandbox.ensure", "sandbox.stop", "sandbox.terminate", "sandbox.release"])
            params: dict[str, Any] = {"key": key}
            if method == "sandbox.release":
                params["mode"] = dice.choice(["keep", "stop", "terminate"])
            sent.append((method, self.peer.send(method, params)))
        return sent

    def settle(self, sent: list[tuple[str, int | None]]) -> None:
        for method, number in sent:
            answer = self.peer.answer(number)
            name = answer.get("error", {}).get("data", {}).get("name")
            assert name in (None, "sandbox_not_found"), (method, answer)

    def check(self, emulator: Emulator) -> None:
        """Its view and the cloud agree, so nobody else has changed anything, and nothing of its own is missing."""
        seen = {one["id"]: one["state"] for one in self.peer.status()["sandboxes"]}
        real = {one["sandbox_id"]: one["state"] for one in living(emulator) if instance_of(one) == self.instance}
        assert seen == real


def test_a_thousand_random_operations(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    emulator.config(max_active=40)
    strangers = {emulator.create_running(tags=tags)
                 for tags in ({}, {"owner": "deepinfra-sandboxd", "sandboxd_instance": "f" * 32, "hermes_task_id": "default"})}
    emulator.reset_stats()
    dice = random.Random(14)
    sides = [Side(make_daemon(name, max_active=20)) for name in ("one", "two")]
    for _ in range(ROUNDS):
        if dice.random() < 0.5:
            action, method, route = dice.choice(MOODS)
            emulator.fault(action, method=method, route=route)
        under_way = [side.act(dice) for side in sides]
        for side, sent in zip(sides, under_way):
            side.settle(sent)
        emulator.clear_faults()
        for side in sides:
            side.check(emulator)
    for side in sides:  # one that dies does not change that
        side.daemon.kill()
        side.peer.close()
        side.peer = side.daemon.start().peer()
        wait_until(lambda: side.peer.status()["daemon"]["phase"] == "ready", "it has compared")  # noqa: B023
        side.check(emulator)
        assert side.peer.status()["orphans"] == []
        for one in side.peer.status()["sandboxes"]:
            side.peer.call("sandbox.terminate", {"id": one["id"], "force": True})
    assert {one["sandbox_id"] for one in living(emulator)} == strangers
    assert all(one["state"] == "running" for one in living(emulator))
    assert not strangers & set(emulator.stats()["by_sandbox"])


@pytest.mark.parametrize("seed", range(3))
def test_commands_and_operations_that_race_on_one_key(make_daemon: Callable[..., Daemon], emulator: Emulator, seed: int) -> None:
    """Each command runs to its end, once, whatever is asked for beside it, unless that was to end it by force."""
    emulator.config(max_active=6, boot_ms=60, start_ms=40, stop_ms=40)
    strangers = {emulator.create_running() for _ in range(2)}
    emulator.reset_stats()
    dice = random.Random(seed)
    tasks = "ab" if seed else "abcde"  # those have to make room for one another, too
    numbers = itertools.count()
    with make_daemon(max_active=3, evict_min_idle=0.02, idle_stop=0.4, queue_timeout=60).start().peer(limit_s=120) as peer:
        for _ in range(20):
            if dice.random() < 0.5:
                action, method, route = dice.choice([*MOODS, ({"status": 429, "body": "", "headers": {"Retry-After": "1"}}, "POST", "/v1/sandboxes")])
                emulator.fault(action, method=method, route=route)
            asked, running = [], {}
            for _ in range(dice.randint(2, 8)):
                key = {"profile": "p", "task": dice.choice(tasks)}
                method = dice.choice(["sandbox.ensure", "sandbox.stop", "sandbox.terminate", "sandbox.release", "", "", ""])
                if method:
                    asked.append((method, peer.send(method, {"key": key} | ({"mode": dice.choice(["keep", "stop", "terminate"])} if method == "sandbox.release" else {}))))
                else:
                    word = str(next(numbers))
                    running[peer.start("/bin/sh", "-c", f"mkdir /workspace/ran-{word} && sleep {dice.choice([0, 0, 0.1, 0.5])}; echo {word}", key=key)] = word
            for method, number in asked:
                name = peer.answer(number).get("error", {}).get("data", {}).get("name")
                assert name in (None, "sandbox_not_found", "sandbox_busy"), (method, name)
            for exec_id, word in running.items():
                ended = peer.finish(exec_id)
                assert (ended.reason, ended.stdout, ended.stderr) == ("exited", word.encode() + b"\n", b""), ended.params
            emulator.clear_faults()
        for one in peer.status()["sandboxes"]:
            peer.call("sandbox.terminate", {"key": one["key"], "force": True})
        assert peer.status()["orphans"] == []
    assert {one["sandbox_id"] for one in living(emulator)} == strangers
