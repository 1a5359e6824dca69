"""The doctor: what it finds wrong with machine, daemon, key and cloud, and what it repairs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY
from support.scenes import DELETE, living

Make = Callable[..., Daemon]
ODD_KEY = {"profile": "/srv/agents/ada", "task": "build"}


def doctor(daemon: Daemon, *arguments: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code, and the checks by name."""
    told = daemon.cli("doctor", "--json", *arguments)
    answer = json.loads(told.stdout)
    assert answer["ok"] == (told.returncode == 0)
    checks: dict[str, list[dict[str, Any]]] = {}
    for check in answer["checks"]:
        assert set(check) == {"check", "verdict", "text", "hint"} and check["text"]
        checks.setdefault(check["check"], []).append(check)
    plain = daemon.cli("doctor", *[each for each in arguments if each != "--fix"])
    assert plain.returncode == told.returncode or "--fix" in arguments
    assert plain.stdout.count(b"\n") >= len(answer["checks"]) or "--fix" in arguments
    return told.returncode, checks


def test_all_is_well(daemon: Daemon, emulator: Emulator) -> None:
    code, checks = doctor(daemon)
    assert code == 0
    assert {name: checks[name][0]["verdict"] for name in ("state directory", "daemon", "socket", "cloud")} == dict.fromkeys(
        ("state directory", "daemon", "socket", "cloud"), "ok")
    assert "systemctl" in checks["systemd"][0]["hint"]
    assert str(daemon.socket) in checks["socket"][0]["text"]
    assert b"test-key" not in daemon.cli("doctor", "--json").stdout


def test_no_daemon(make_daemon: Make) -> None:
    code, checks = doctor(make_daemon())
    assert code == 1 and checks["daemon"][-1]["verdict"] == "error" and "systemctl" in checks["daemon"][-1]["hint"]


@pytest.mark.parametrize("trouble", ["key", "network", "no key"])
def test_the_key_and_the_cloud_are_tried(make_daemon: Make, emulator: Emulator, trouble: str) -> None:
    daemon = make_daemon(api_key={"key": "wrong", "network": "test-key", "no key": None}[trouble]).start()
    if trouble == "network":
        emulator.config(accept_mode="refuse")
    code, checks = doctor(daemon)
    assert code == 1
    name = {"key": "unauthorized", "network": "cloud_unreachable", "no key": "not_configured"}[trouble]
    assert checks[name][0]["verdict"] == "error" and checks[name][0]["hint"]
    if trouble != "no key":
        assert checks["cloud"][0]["verdict"] == "error"


def test_a_state_directory_that_others_can_read(daemon: Daemon) -> None:
    os.chmod(daemon.state_dir, 0o755)
    code, checks = doctor(daemon)
    assert code == 0 and checks["state directory"][0]["verdict"] == "warning" and "chmod 700" in checks["state directory"][0]["hint"]


def test_lost_sandboxes(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        for key in (DEFAULT_KEY, ODD_KEY, {**ODD_KEY, "task": "other"}):
            peer.sh("echo kept >file", key=key)
        peer.call("sandbox.ensure", {"key": {"profile": "default", "task": "session"}, "persistent": False})
        ids = {one["key"]["task"]: one["id"] for one in peer.status()["sandboxes"]}
    daemon.stop()
    (daemon.state_dir / "state.json").unlink()
    stranger = emulator.create_running()
    daemon.start()
    with daemon.peer() as peer:
        wait_until(lambda: len(peer.status()["orphans"]) == 4, "they are found")
    code, checks = doctor(daemon)
    assert code == 0 and emulator.count(DELETE) == 0
    said = {task: checks[f"orphan {one}"][0]["text"] for task, one in ids.items()}
    assert "adopts" in said["default"] and "single session" in said["session"] and "deletes" in said["build"]

    code, checks = doctor(daemon, "--fix", "--profile", "/srv/elsewhere", "--profile", "/srv/agents/ada")
    assert code == 0
    fixed = {task: checks[f"orphan {one}"][0] for task, one in ids.items()}
    assert all(each["verdict"] == "ok" for each in fixed.values())
    assert [one["sandbox_id"] for one in emulator.sandboxes() if one["state"] == "deleted"] == [ids["session"]]
    with daemon.peer() as peer:
        assert peer.status()["orphans"] == []
        for key in (DEFAULT_KEY, ODD_KEY):
            assert peer.sh("cat file", key=key).stdout == b"kept\n"
    assert emulator.sandbox(stranger)["state"] == "running"


def test_one_of_an_unknown_profile_is_deleted_only_on_request(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true", key=ODD_KEY)
    daemon.stop()
    (daemon.state_dir / "state.json").unlink()
    daemon.start()
    with daemon.peer() as peer:
        wait_until(lambda: peer.status()["orphans"], "it is found")
    assert doctor(daemon)[0] == 0 and len(living(emulator)) == 1
    assert doctor(daemon, "--fix")[0] == 0 and living(emulator) == []
