"""Who wants a sandbox kept is not forgotten with the daemon: what another living process works in is not deleted under it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import holder, living, only_id

Make = Callable[..., Daemon]


def kept_holders(daemon: Daemon) -> list[dict[str, Any]]:
    record = json.loads((daemon.state_dir / "state.json").read_text())["sandboxes"][0]
    found: list[dict[str, Any]] = record["holders"] if record["persistent"] else [record["owner"]]
    return found


def ready(daemon: Daemon) -> Peer:
    peer = daemon.start().peer()
    wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared")
    return peer


def terminate(peer: Peer) -> dict[str, Any]:
    answer: dict[str, Any] = peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "terminate"})
    return answer


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_holder_outlives_the_daemon(daemon: Daemon, emulator: Emulator, persistent: bool, how: str) -> None:
    with holder(daemon, persistent=persistent) as process:
        used = only_id(emulator)
        with daemon.peer() as peer:
            peer.sh("echo precious >file")
        wait_until(lambda: any(one["pid"] == process.pid for one in kept_holders(daemon)), "it is written down")
        getattr(daemon, how)()
        with ready(daemon) as peer:
            assert peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["holders"] >= 1
            answer = terminate(peer)
            assert answer["action"] == "kept" and answer["holders"] == 1
            assert peer.sh("cat file").stdout == b"precious\n" and only_id(emulator) == used


def test_one_that_joins_a_running_sandbox_is_written_down_too(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        with holder(daemon, persistent=True) as process:
            wait_until(lambda: any(one["pid"] == process.pid for one in kept_holders(daemon)), "it is written down")


def test_one_that_has_ended_meanwhile_holds_nothing(daemon: Daemon, emulator: Emulator) -> None:
    with holder(daemon, persistent=True):
        daemon.stop()
    with ready(daemon) as peer:
        assert terminate(peer)["action"] == "terminated" and not living(emulator)


def test_nor_does_one_of_another_boot_or_that_has_let_go(daemon: Daemon, emulator: Emulator) -> None:
    with holder(daemon, persistent=True):
        daemon.stop()
        file = daemon.state_dir / "state.json"
        state = json.loads(file.read_text())
        for one in state["sandboxes"][0]["holders"]:
            one["boot"] = "another"
        file.write_text(json.dumps(state))
        with ready(daemon) as peer:
            peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
            assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "keep"})["holders"] == 0
            wait_until(lambda: kept_holders(daemon) == [], "that is written down")
            assert terminate(peer)["action"] == "terminated"
