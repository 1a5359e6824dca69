"""`exec` as its users meet it: bytes, exit codes, interrupts, slow and vanished readers, and a daemon in trouble."""

from __future__ import annotations

import os
import pathlib
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from support.daemon import Daemon

LIMIT_S = 20.0


def start(daemon: Daemon, *arguments: str, **how: object) -> subprocess.Popen[bytes]:
    """A verb that goes on while the test looks at it."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.Popen(daemon.command(*arguments), env=daemon.environment, **pipes)  # type: ignore[call-overload, no-any-return]


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_command_s_code_streams_and_bytes_are_passed_on(daemon: Daemon) -> None:
    result = daemon.cli("exec", "--", "bash", "-c", r"printf 'out\n'; printf 'err\n' >&2; exit 7")
    assert (result.returncode, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


def test_arguments_are_passed_as_they_are(daemon: Daemon) -> None:
    given = ["", " a  b ", "*", "$HOME", "--help", "'\"", "caf\u00e9", "-x"]
    result = daemon.cli("exec", "--", "printf", "<%s>", *given)
    assert result.stdout.decode() == "".join(f"<{argument}>" for argument in given)


def test_directory_variables_and_input(daemon: Daemon) -> None:
    result = daemon.cli("exec", "--cwd", "/tmp", "-e", "A=1=2", "--env", "B=", "-i", "--", "bash", "-c",
                        'pwd; echo "<$A> <${B-unset}>"; cat', input=b"line\r\nno end")
    assert (result.returncode, result.stdout) == (0, b"/tmp\n<1=2> <>\nline\r\nno end")
    assert daemon.cli("exec", "--", "cat", input=b"not for it").stdout == b""


def test_input_that_is_too_long_is_refused_before_anything_runs(daemon: Daemon) -> None:
    result = daemon.cli("exec", "-i", "--", "touch", "/workspace/ran", input=b"x" * (2 << 20))
    assert result.returncode == 125
    assert b"error: " in result.stderr and b"hint: " in result.stderr
    assert daemon.cli("exec", "--", "test", "-e", "/workspace/ran").returncode == 1


def test_a_time_out_keeps_the_output_and_is_124(daemon: Daemon) -> None:
    result = daemon.cli("exec", "--timeout", "1", "--", "bash", "-c", "echo partial; sleep 60")
    assert (result.returncode, result.stdout) == (124, b"partial\n")
    assert b"deepinfra-sandboxd: " in result.stderr


def test_output_arrives_while_the_command_runs(daemon: Daemon) -> None:
    process = start(daemon, "exec", "--", "bash", "-c", "echo first; sleep 60")
    assert first_line(process) == b"first\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_this_command_and_no_other(daemon: Daemon, interrupt: signal.Signals) -> None:
    other = start(daemon, "exec", "--", "bash", "-c", "echo up; sleep 2; echo done")
    assert first_line(other) == b"up\n"
    process = start(daemon, "exec", "--", "bash", "-c", "echo up; sleep 60")
    assert first_line(process) == b"up\n"
    process.send_signal(interrupt)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    out, _ = other.communicate(timeout=LIMIT_S)
    assert (other.returncode, out) == (0, b"done\n")


def test_a_second_interrupt_leaves_at_once(daemon: Daemon) -> None:
    process = start(daemon, "exec", "--", "bash", "-c", "echo up; sleep 60")
    assert first_line(process) == b"up\n"
    os.kill(daemon.pid, signal.SIGSTOP)  # so that the cancel cannot be answered
    try:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    process.communicate()


def test_a_reader_that_leaves_ends_the_command(daemon: Daemon) -> None:
    process = start(daemon, "exec", "--id", "endless", "--", "yes")
    assert first_line(process) == b"y\n"
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(LIMIT_S) == 130
    with daemon.peer() as peer:
        ended = [entry for entry in peer.call("exec.list")["execs"] if entry["exec_id"] == "endless"]
        assert all(entry["phase"] == "done" for entry in ended)


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


def test_a_daemon_that_dies_leaves_the_outcome_unknown(daemon: Daemon) -> None:
    process = start(daemon, "exec", "--", "bash", "-c", "echo up; sleep 60")
    assert first_line(process) == b"up\n"
    daemon.kill()
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 125
    assert b"deepinfra-sandboxd: error: " in err and b"deepinfra-sandboxd: hint: " in err
    assert b"unknown" in err


def test_without_a_daemon_nothing_runs_and_the_way_out_is_told(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    result = daemon.cli("exec", "--", "true")
    assert (result.returncode, result.stdout) == (125, b"")
    assert b"not running" in result.stderr
    assert b"systemctl --user start deepinfra-sandboxd.socket" in result.stderr
    assert daemon.cli("status").returncode == 3


def test_an_id_never_runs_twice(daemon: Daemon) -> None:
    script = ("--id", "once", "--", "bash", "-c", "echo x >>/workspace/n")
    assert daemon.cli("exec", *script).returncode == 0
    again = daemon.cli("exec", *script)
    assert again.returncode == 125 and b"once" in again.stderr
    assert daemon.cli("exec", "--", "cat", "/workspace/n").stdout == b"x\n"


def test_progress_is_for_terminals_only(make_daemon: Callable[..., Daemon], tmp_path: pathlib.Path) -> None:
    daemon = make_daemon().start()
    ours, theirs = pty.openpty()
    process = start(daemon, "exec", "--", "true", stderr=theirs)
    os.close(theirs)
    assert process.wait(LIMIT_S) == 0
    shown = b""
    while select.select([ours], [], [], 0)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # how a pty says that its other end is closed
            break
    os.close(ours)
    assert b"deepinfra-sandboxd: " in shown
    assert shown.endswith(b"\r\x1b[K")  # and wiped away
    process.communicate()

    assert daemon.cli("exec", "--task", "another", "--", "true").stderr == b""


def test_a_reset_sandbox_is_told(daemon: Daemon) -> None:
    assert daemon.cli("exec", "--", "true").stderr == b""
    assert daemon.cli("stop", "--task", "default").returncode == 0
    result = daemon.cli("exec", "--", "true")
    assert result.returncode == 0
    assert b"deepinfra-sandboxd: the sandbox was started anew" in result.stderr
