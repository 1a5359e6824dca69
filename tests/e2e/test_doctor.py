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


def lose(daemon: Daemon, count: int, *files: str) -> None:
    daemon.stop()
    for name in ("state.json", *files):
        (daemon.state_dir / name).unlink()
    daemon.start()
    with daemon.peer() as peer:
        wait_until(lambda: len(peer.status()["orphans"]) == count, "they are found")


def test_lost_sandboxes(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        for key in (DEFAULT_KEY, ODD_KEY, {**ODD_KEY, "task": "other"}):
            peer.sh("echo kept >file", key=key)
        peer.call("sandbox.ensure", {"key": {"profile": "default", "task": "session"}, "persistent": False})
        ids = {one["key"]["task"]: one["id"] for one in peer.status()["sandboxes"]}
    stranger = emulator.create_running()
    lose(daemon, 4, "sandbox-keys")
    code, checks = doctor(daemon)
    assert code == 0 and emulator.count(DELETE) == 0
    said = {task: checks[f"orphan {one}"][0]["text"] for task, one in ids.items()}
    assert "adopts" in said["default"] and "single session" in said["session"] and "leaves it alone" in said["build"]

    code, checks = doctor(daemon, "--fix", "--profile", "/srv/elsewhere", "--profile", "/srv/agents/ada")
    assert code == 0
    fixed = {task: checks[f"orphan {one}"][-1] for task, one in ids.items()}
    assert all(each["verdict"] == "ok" for each in fixed.values())
    assert [one["sandbox_id"] for one in emulator.sandboxes() if one["state"] == "deleted"] == [ids["session"]]
    with daemon.peer() as peer:
        assert peer.status()["orphans"] == []
        for key in (DEFAULT_KEY, ODD_KEY):
            assert peer.sh("cat file", key=key).stdout == b"kept\n"
    assert emulator.sandbox(stranger)["state"] == "running"


def test_one_of_an_unknown_profile_is_deleted_only_by_name(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("sleep 600 >/dev/null 2>&1 &", key=ODD_KEY)
        peer.sh("true", key={**ODD_KEY, "task": "other"})
        ids = {one["key"]["task"]: one["id"] for one in peer.status()["sandboxes"]}
    lose(daemon, 2, "sandbox-keys")
    assert doctor(daemon)[0] == 0
    code, checks = doctor(daemon, "--fix")
    left = checks[f"orphan {ids['build']}"][0]
    assert code == 0 and left["verdict"] == "warning" and "left alone" in left["text"]
    assert f"--terminate {ids['build']}" in left["hint"] and "--profile" in left["hint"]
    assert emulator.count(DELETE) == 0

    code, checks = doctor(daemon, "--fix", "--terminate", "sb_slip")
    assert code == 1 and "nothing was done" in checks["orphan sb_slip"][0]["text"]
    assert daemon.cli("doctor", "--terminate", ids["build"]).returncode == 2 and emulator.count(DELETE) == 0
    code, checks = doctor(daemon, "--fix", "--terminate", ids["build"])
    said = checks[f"orphan {ids['build']}"]
    assert code == 0 and "1 process of" in said[0]["text"] and "deleted" in said[1]["text"]
    assert [one["sandbox_id"] for one in living(emulator)] == [ids["other"]]


def test_with_the_keys_kept_all_are_adopted(daemon: Daemon, emulator: Emulator) -> None:
    keys = [ODD_KEY, {"profile": "default", "task": "t" * 200}]
    with daemon.peer() as peer:
        for key in keys:
            peer.sh("echo precious >file", key=key)
    lose(daemon, 2)
    assert doctor(daemon, "--fix")[0] == 0
    with daemon.peer() as peer:
        for key in keys:
            assert peer.sh("cat file", key=key).stdout == b"precious\n"
    assert emulator.count(DELETE) == 0


def test_a_deletion_that_is_not_ordered_in_full_is_refused(daemon: Daemon) -> None:
    done = daemon.cli("doctor", "--terminate", "sb_1")
    assert done.returncode == 2 and b"--terminate goes with --fix; nothing was done" in done.stderr


def test_one_of_a_session_at_work_is_left_alone(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("sleep 600 >/dev/null 2>&1 &", persistent=False)
        session = peer.status()["sandboxes"][0]["id"]
    lose(daemon, 1)
    code, checks = doctor(daemon, "--fix")
    said = checks[f"orphan {session}"][0]
    assert code == 0 and said["verdict"] == "warning" and "1 process of" in said["text"] and session in said["hint"]
    assert emulator.count(DELETE) == 0


def test_of_two_for_one_task_a_person_decides(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("echo precious >file")
        first = peer.status()["sandboxes"][0]["id"]
    lose(daemon, 1)
    with daemon.peer() as peer:
        peer.sh("true")
    code, checks = doctor(daemon, "--fix")
    said = checks[f"orphan {first}"][0]
    assert code == 0 and said["verdict"] == "warning" and "another sandbox" in said["text"] and first in said["hint"]
    assert emulator.count(DELETE) == 0 and len(living(emulator)) == 2
