"""Where the command line meets trouble: readers that do not read, daemons that hang, options that must not be taken."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from support.daemon import Daemon
from support.emulator import Emulator

LIMIT_S = 20.0


def start(daemon: Daemon, *arguments: str) -> subprocess.Popen[bytes]:
    """A verb that goes on while the test looks at it."""
    return subprocess.Popen(daemon.command(*arguments), env=daemon.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def test_a_slow_reader_gets_every_byte_and_no_memory_grows(daemon: Daemon) -> None:
    size = 8 << 20
    process = start(daemon, "exec", "--", "bash", "-c", f"yes 0123456789abcde | head -c {size}")
    assert process.stdout is not None
    received = process.stdout.read(16)
    before = daemon.rss_kib()
    # Nobody reads, and meanwhile others are served.
    assert daemon.cli("exec", "--", "echo", "served").stdout == b"served\n"
    assert daemon.rss_kib() - before < 16 << 10
    received += process.stdout.read()
    assert process.wait(LIMIT_S) == 0
    assert received == b"0123456789abcde\n" * (size // 16)


def test_a_terminal_that_shows_nothing_holds_up_no_interrupt(daemon: Daemon) -> None:
    process = start(daemon, "exec", "--", "yes")
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], LIMIT_S)[0]  # it has begun, and its pipe fills up unread
    process.send_signal(signal.SIGINT)
    with daemon.peer() as peer:
        deadline = time.monotonic() + LIMIT_S
        while any(entry["phase"] != "done" for entry in peer.call("exec.list")["execs"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    process.stdout.read()
    assert process.wait(LIMIT_S) == 130


def test_an_id_never_runs_twice(daemon: Daemon) -> None:
    script = ("--id", "once", "--", "bash", "-c", "echo x >>/workspace/n; exit 3")
    assert daemon.cli("exec", *script).returncode == 3
    assert daemon.cli("exec", *script).returncode == 3  # attached to what has ended
    other = daemon.cli("exec", "--id", "once", "--", "true")
    assert other.returncode == 125 and b"other arguments" in other.stderr and b"has not run" in other.stderr
    assert daemon.cli("exec", "--", "cat", "/workspace/n").stdout == b"x\n"


def test_status_asks_the_cloud_nothing(daemon: Daemon, emulator: Emulator) -> None:
    assert daemon.cli("exec", "--", "true").returncode == 0
    before = emulator.stats()["total"]
    assert daemon.cli("status").returncode == 0
    assert daemon.cli("list").returncode == 0
    assert emulator.stats()["total"] == before


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


def test_a_command_that_was_never_sent_is_said_not_to_have_run(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    gone = daemon.cli("exec", "--", "true")
    assert gone.returncode == 125 and b"is not running" in gone.stderr and b"; the command has not run" in gone.stderr
    with_id = daemon.cli("exec", "--id", "mine", "--", "true")  # it may have run before
    assert with_id.returncode == 125 and b"; nothing was sent" in with_id.stderr and b"has not run" not in with_id.stderr
    daemon.start()
    for wrong in (("--", *["x" * (2 << 10)] * 600), ("--task", "", "--", "true")):  # more than a message; what the daemon refuses
        refused = daemon.cli("exec", *wrong)
        assert refused.returncode == 125 and b"has not run" in refused.stderr, refused
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        silent = daemon.cli("exec", "--", "true")
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert silent.returncode == 125 and b"does not answer; the command has not run" in silent.stderr


def test_the_key_is_in_no_argument_and_no_text(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(api_key="canary key")
    refused = daemon.cli("serve")
    assert refused.returncode == 2
    assert b"DEEPINFRA_API_KEY" in refused.stderr and b"canary" not in refused.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    (("--api-key", "k"), b"--api-key"),
    (("--base-url", "http://example.com"), b"not encrypted"),
    (("--socket", "/" + "x" * 119), b"120 bytes"),
    (("--server-timeout", "0"), b"--server-timeout"),
])
def test_serve_refuses_what_it_must_not_do_and_leaves_nothing_behind(make_daemon: Callable[..., Daemon], arguments: tuple[str, ...],
                                                                     said: bytes) -> None:
    daemon = make_daemon()
    result = daemon.cli("serve", *arguments)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: ") and said in result.stderr
    assert not daemon.state_dir.exists()
