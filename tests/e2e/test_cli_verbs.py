"""The verbs beside `exec`: what they print, their JSON against the schemas, their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.schema import Validator


def printed_json(daemon: Daemon, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The one object that a verb prints."""
    result = daemon.cli(*arguments, "--json")
    assert (result.returncode, result.stderr) == (code, b"")
    assert result.stdout.count(b"\n") == 1
    printed = json.loads(result.stdout)
    assert isinstance(printed, dict)
    return printed


@pytest.mark.parametrize(("verb", "method"), [("status", "daemon.status"), ("list", "sandbox.list"), ("plans", "plan.list")])
def test_json_is_the_daemon_s_answer(daemon: Daemon, verb: str, method: str) -> None:
    assert daemon.cli("exec", "--", "true").returncode == 0
    Validator().result(method, printed_json(daemon, verb))


def test_a_sandbox_s_life(daemon: Daemon) -> None:
    validator = Validator()
    assert daemon.cli("list").stdout == b"no sandboxes\n"
    assert daemon.cli("exec", "--task", "t", "--", "touch", "/workspace/kept").returncode == 0
    (sandbox,) = printed_json(daemon, "list")["sandboxes"]

    assert daemon.cli("stop", "--task", "t").stdout.decode() == f"stopped {sandbox['id']} (task t)\n"
    assert daemon.cli("start", sandbox["id"]).stdout.decode() == f"started {sandbox['id']} (task t)\n"
    validator.result("sandbox.stop", printed_json(daemon, "stop", sandbox["id"]))
    validator.result("sandbox.start", printed_json(daemon, "start", "--task", "t"))
    assert daemon.cli("exec", "--task", "t", "--", "ls", "/workspace").stdout == b"kept\n"
    assert daemon.cli("terminate", "--task", "t").stdout.decode() == f"terminated {sandbox['id']}\n"
    again = daemon.cli("terminate", sandbox["id"])
    assert again.returncode == 1
    assert again.stderr.startswith(b"error: ") and b"\nhint: " in again.stderr


def test_a_busy_sandbox_is_stopped_by_force_only(daemon: Daemon) -> None:
    process = subprocess.Popen(daemon.command("exec", "--", "bash", "-c", "echo up; sleep 60"), env=daemon.environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    assert daemon.cli("stop", "--task", "default").returncode == 1
    assert process.poll() is None
    assert daemon.cli("stop", "--force", "--task", "default").returncode == 0
    process.communicate(timeout=20)
    assert process.returncode == 125


def test_cancel_ends_the_named_command(daemon: Daemon) -> None:
    process = subprocess.Popen(daemon.command("exec", "--id", "mine", "--", "bash", "-c", "echo up; sleep 60"), env=daemon.environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    assert daemon.cli("cancel", "mine").stdout == b"cancelled mine\n"
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert daemon.cli("cancel", "nonesuch").returncode == 1


def test_status_without_a_key_is_degraded_and_says_so(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(api_key=None).start()
    status = printed_json(daemon, "status", code=1)
    assert status["account"]["configured"] is False
    assert b"no API key" in daemon.cli("status").stdout


def test_status_asks_the_cloud_nothing(daemon: Daemon, emulator: Emulator) -> None:
    assert daemon.cli("exec", "--", "true").returncode == 0
    before = emulator.stats()["total"]
    assert daemon.cli("status").returncode == 0
    assert daemon.cli("list").returncode == 0
    assert emulator.stats()["total"] == before


def test_what_a_sandbox_is_called_does_not_reach_the_terminal_as_a_command(daemon: Daemon) -> None:
    assert daemon.cli("exec", "--task", "a\x1b[2Jb\u202e", "--", "true").returncode == 0
    page = daemon.cli("status").stdout.decode()
    assert "a\\x1b[2Jb\\u{202e}" in page
    assert "\x1b" not in page


def test_a_daemon_that_hangs_is_told_from_one_that_is_not_there(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        hung = daemon.cli("status")
        waited = daemon.cli("wait", "--timeout", "0.2")
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert (hung.returncode, waited.returncode) == (4, 4)
    assert b"does not answer" in hung.stderr
    daemon.kill()
    gone = daemon.cli("status")
    assert (gone.returncode, daemon.cli("wait", "--timeout", "0.2").returncode) == (3, 3)
    assert b"not running" in gone.stderr


def test_wait_waits_for_a_daemon_that_comes(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    waiting = subprocess.Popen(daemon.command("wait", "--timeout", "20"), env=daemon.environment, stdin=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.3)
    daemon.start()
    assert waiting.wait(20) == 0


@pytest.mark.parametrize("arguments", [
    (), ("nonesuch",), ("status", "--jsno"), ("status", "surplus"), ("stop",), ("terminate",), ("stop", "sb_1", "--task", "t"),
    ("cancel",), ("wait", "--timeout", "soon"), ("serve", "--idle-stop", "soon"), ("serve", "--api-key", "k"),
    ("serve", "--base-url", "http://example.com"), ("serve", "--socket", "/" + "x" * 119),
])
def test_a_wrong_command_line_is_2_and_does_nothing(make_daemon: Callable[..., Daemon], arguments: tuple[str, ...]) -> None:
    daemon = make_daemon()
    result = daemon.cli(*arguments)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: ")
    assert not daemon.state_dir.exists()


def test_the_key_is_in_no_argument_and_no_text(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(api_key="canary key")
    refused = daemon.cli("serve")
    assert refused.returncode == 2
    assert b"DEEPINFRA_API_KEY" in refused.stderr and b"canary" not in refused.stderr


def test_help_and_version(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    overview = daemon.cli("--help").stdout.decode()
    for verb in ("status", "list", "exec", "cancel", "start", "stop", "terminate", "plans", "wait", "serve"):
        assert f"\n  {verb} " in overview
        explained = daemon.cli(verb, "--help")
        assert (explained.returncode, explained.stderr) == (0, b"")
        assert explained.stdout.startswith(f"usage: deepinfra-sandboxd {verb}".encode())
    assert daemon.cli("--version").stdout.startswith(b"deepinfra-sandboxd ")
