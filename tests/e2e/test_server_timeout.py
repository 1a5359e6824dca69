"""The time after which the platform stops what nobody calls goes with each sandbox, not with the option."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.scenes import STOP, only_id, without_shim

Make = Callable[..., Daemon]


def outlive(daemon: Daemon, emulator: Emulator) -> None:
    """A command of several times the sandbox's time-out ends well."""
    with daemon.start().peer() as peer:
        wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared")
        begun = time.monotonic()
        ended = peer.sh("sleep 11; echo lived")
        assert ended.stdout == b"lived\n" and ended.returncode == 0 and time.monotonic() - begun >= 11
    assert emulator.sandbox(only_id(emulator))["state"] == "running" and emulator.count(STOP) == 0


def test_the_option_was_raised_meanwhile(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(server_timeout=5).start()
    with daemon.peer() as peer:
        peer.sh("true")
    daemon.stop()
    assert json.loads((daemon.state_dir / "state.json").read_text())["sandboxes"][0]["timeout_s"] == 5
    daemon.options["server-timeout"] = 3600
    outlive(daemon, emulator)


def test_the_same_without_a_shim(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(server_timeout=5).start()
    with daemon.peer() as peer:
        without_shim(emulator)
        peer.sh("true")
    daemon.stop()
    daemon.options["server-timeout"] = 3600
    without_shim(emulator)
    outlive(daemon, emulator)


def test_an_orphan_brings_its_own(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(server_timeout=5).start()
    with daemon.peer() as peer:
        peer.sh("true")
    daemon.stop()
    (daemon.state_dir / "state.json").unlink()
    daemon.options["server-timeout"] = 3600
    with daemon.start().peer() as peer:
        wait_until(lambda: peer.status()["orphans"], "it is found")
        peer.call("orphan.adopt", {"id": only_id(emulator), "key": {"profile": "default", "task": "default"}})
    daemon.stop()
    outlive(daemon, emulator)
