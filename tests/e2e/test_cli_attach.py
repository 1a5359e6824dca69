"""`exec` and `attach` at a command that outlives them, and at a daemon that goes and comes back."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import re
import signal
import subprocess

import pytest

from support.cli import LIMIT_S, Terminal, press_until_it_leaves, running
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.scenes import EXEC, TWO_PARTS, living, only_id, processes, ran, workspace

def go(emulator: Emulator) -> None:
    (workspace(emulator) / "go").touch()


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def outcome(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Exit code and the rest of both outputs."""
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    return process.returncode, stdout, stderr


def left_running(daemon: Daemon, exec_id: str, script: str = TWO_PARTS) -> None:
    """A command whose `exec` was killed when its first line had come."""
    with running(daemon, "exec", "--id", exec_id, "--", "/bin/sh", "-c", script) as cli:
        assert line_of(cli) == b"first\n"


def claims(emulator: Emulator) -> list[pathlib.Path]:
    """What the sandbox remembers of commands."""
    return list((workspace(emulator) / ".deepinfra-sandboxd" / "claims").iterdir())


# -- attach


def test_attach_shows_a_running_command_to_its_end(daemon: Daemon, emulator: Emulator) -> None:
    left_running(daemon, "left")
    with running(daemon, "attach", "left") as cli, running(daemon, "attach", "--offset", "3", "left") as later:
        assert (line_of(cli), line_of(later)) == (b"first\n", b"st\n")
        go(emulator)
        for each in (cli, later):
            assert outcome(each) == (3, b"second\n", b"other\n")
    assert ran(emulator) == 1


def test_attach_shows_one_that_has_ended(daemon: Daemon, emulator: Emulator) -> None:
    left_running(daemon, "left")
    go(emulator)
    with daemon.peer() as peer:
        wait_until(lambda: peer.call("exec.list")["execs"][0]["phase"] == "done", "the end")
    beyond = daemon.cli("attach", "left", "--offset", "20")
    assert (beyond.returncode, beyond.stdout) == (125, b"") and b"19 bytes" in beyond.stderr
    done = daemon.cli("attach", "left", "--offset", "13")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"other\n")


def test_the_end_is_acknowledged_and_then_forgotten(daemon: Daemon, emulator: Emulator) -> None:
    assert daemon.cli("exec", "--id", "done", "--", "/bin/sh", "-c", "echo out; exit 3").returncode == 3
    daemon.cli("exec", "--", "true")  # takes the word along
    wait_until(lambda: not any("done" in one.name for one in claims(emulator)), "the claim to go")
    again = daemon.cli("attach", "done")
    assert (again.returncode, again.stdout) == (3, b"") and b"4 bytes of its output are missing" in again.stderr


def test_what_could_not_be_written_can_be_had_again(daemon: Daemon) -> None:
    with open("/dev/full", "wb") as full, running(daemon, "exec", "--id", "full", "--", "echo", "kept", stdout=full) as cli:
        code, _, stderr = outcome(cli)
    assert code == 125 and b"No space left" in stderr and b"`deepinfra-sandboxd attach full`" in stderr
    assert daemon.cli("attach", "full").stdout == b"kept\n"


def test_attach_to_what_nobody_knows(daemon: Daemon, emulator: Emulator) -> None:
    done = daemon.cli("attach", "nobody")
    assert (done.returncode, done.stdout) == (125, b"") and b"nobody" in done.stderr and b"hint:" in done.stderr
    assert emulator.sandboxes() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_attach_only_leaves(daemon: Daemon, emulator: Emulator, how: signal.Signals) -> None:
    left_running(daemon, "left")
    with running(daemon, "attach", "left") as cli:
        assert line_of(cli) == b"first\n"
        cli.send_signal(how)
        code, stdout, stderr = outcome(cli)
        assert (code, stdout) == (130, b"")
        assert b"goes on" in stderr and b"`deepinfra-sandboxd cancel left`" in stderr
    go(emulator)
    assert daemon.cli("attach", "left", "--offset", "6").returncode == 3


def test_a_terminal_that_is_closed_ends_exec_and_not_its_command(daemon: Daemon, emulator: Emulator) -> None:
    terminal = Terminal(daemon, "exec", "--id", "left", "--", "/bin/sh", "-c", "until [ -e go ]; do echo first; sleep 0.01; done; exit 6")
    terminal.until(b"first")
    terminal.close()
    assert terminal.process.wait(LIMIT_S) == 129
    go(emulator)
    assert daemon.cli("attach", "left").returncode == 6


def test_a_reader_that_goes_ends_attach_alone(daemon: Daemon, emulator: Emulator) -> None:
    left_running(daemon, "left", "echo first; until [ -e go ]; do echo more; sleep 0.01; done; exit 6")
    with running(daemon, "attach", "left") as cli, subprocess.Popen(["head", "-1"], stdin=cli.stdout, stdout=subprocess.PIPE) as head:
        assert cli.stdout is not None
        cli.stdout.close()
        assert head.communicate(timeout=LIMIT_S)[0] == b"first\n"
        assert cli.wait(LIMIT_S) == 141
        assert cli.stderr is not None and cli.stderr.read() == b""
    go(emulator)
    assert daemon.cli("attach", "left").returncode == 6


def test_cancel_ends_attach_too(daemon: Daemon, emulator: Emulator) -> None:
    left_running(daemon, "left")
    with running(daemon, "attach", "left") as cli:
        assert line_of(cli) == b"first\n"
        assert daemon.cli("cancel", "left").returncode == 0
        assert cli.wait(LIMIT_S) == 130
    assert processes(emulator) == []


def test_the_same_id_again_attaches(daemon: Daemon, emulator: Emulator) -> None:
    request = ("exec", "--id", "mine", "--", "/bin/sh", "-c", TWO_PARTS)
    with running(daemon, *request) as first, running(daemon, *request) as second:
        assert (line_of(first), line_of(second)) == (b"first\n", b"first\n")
        other = daemon.cli("exec", "--id", "mine", "--", "touch", "twice")
        assert other.returncode == 125 and b"other arguments" in other.stderr and b"has not run" in other.stderr
        go(emulator)
        assert outcome(first) == outcome(second) == (3, b"second\n", b"other\n")
    assert ran(emulator) == 1


def test_status_tells_the_ids(daemon: Daemon, emulator: Emulator) -> None:
    assert b"COMMAND" not in daemon.cli("status").stdout
    left_running(daemon, "left")
    emulator.config(boot_ms=60_000)
    with running(daemon, "exec", "--task", "slow", "--id", "waits", "--", "true"):
        wait_until(lambda: len(living(emulator)) == 2, "the second sandbox")
        text = daemon.cli("status").stdout.decode()
        daemon.cli("cancel", "waits")
    assert re.search(r"^COMMAND +TASK +PHASE +FOR +PROFILE$", text, re.M)
    assert re.search(r"^left +default +running +\ds +default$", text, re.M)
    assert re.search(r"^waits +slow +queued +\ds +default$", text, re.M)
    daemon.cli("cancel", "left")
    assert b"COMMAND" not in daemon.cli("status").stdout


# -- a daemon that goes and comes back


def test_exec_goes_on_with_the_next_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with running(daemon, "exec", "--", "/bin/sh", "-c", TWO_PARTS) as cli:
        assert line_of(cli) == b"first\n"
        getattr(daemon, how)()
        daemon.start()
        go(emulator)
        assert outcome(cli) == (3, b"second\n", b"other\n")
    assert ran(emulator) == 1


def test_attach_goes_on_with_the_next_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    left_running(daemon, "left")
    with running(daemon, "attach", "left") as cli:
        assert line_of(cli) == b"first\n"
        getattr(daemon, how)()
        go(emulator)
        daemon.start()
        assert outcome(cli) == (3, b"second\n", b"other\n")
    assert ran(emulator) == 1


def test_every_byte_comes_once_across_many_daemons(daemon: Daemon, emulator: Emulator) -> None:
    dice = random.Random(5)
    size = 16 << 20
    program = f"import sys,random; r=random.Random(6); [sys.stdout.buffer.write(r.randbytes(65536)) for _ in range({size >> 16})]"
    digest = hashlib.sha256()
    with running(daemon, "exec", "--", "/bin/sh", "-c", f"echo x >>ran; python3 -c '{program}'; exit 8") as cli:
        assert cli.stdout is not None
        for each in range(8):
            digest.update(cli.stdout.read(dice.randrange(1 << 16, 1 << 20)))
            getattr(daemon, ("stop", "kill")[each % 2])()
            daemon.start()
        while data := cli.stdout.read(1 << 16):
            digest.update(data)
        assert cli.wait(LIMIT_S) == 8
        assert cli.stderr is not None and cli.stderr.read() == b""
    expected = random.Random(6)
    assert digest.digest() == hashlib.sha256(b"".join(expected.randbytes(65536) for _ in range(size >> 16))).digest()
    assert ran(emulator) == 1


def test_what_no_daemon_has_got_to_is_run_by_the_next_one(daemon: Daemon, emulator: Emulator, how: str) -> None:
    emulator.config(boot_ms=60_000)
    with running(daemon, "exec", "--", "/bin/sh", "-c", "echo x >>ran; echo out; exit 4") as cli:
        wait_until(emulator.sandboxes, "the sandbox to be asked for")
        emulator.config(boot_ms=5)
        getattr(daemon, how)()
        emulator.delete_sandbox(only_id(emulator))  # it would boot for a minute
        daemon.start()
        code, stdout, _ = outcome(cli)
        assert (code, stdout) == (4, b"out\n")
    assert ran(emulator) == 1


def test_attach_cannot_run_what_no_daemon_has_got_to(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=60_000)
    with running(daemon, "exec", "--id", "early", "--", "touch", "ran"):
        wait_until(emulator.sandboxes, "the sandbox to be asked for")
    daemon.kill()
    daemon.start()
    done = daemon.cli("attach", "early")
    assert done.returncode == 125 and b"it has not run" in done.stderr


def test_a_daemon_that_does_not_come_back(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with running(daemon, "exec", "--id", "kept", "--reconnect", "300ms", "--", "/bin/sh", "-c", TWO_PARTS) as cli:
        assert line_of(cli) == b"first\n"
        getattr(daemon, how)()
        code, stdout, stderr = outcome(cli)
    assert (code, stdout) == (125, b"")
    assert b"command kept goes on in its sandbox" in stderr and b"`deepinfra-sandboxd attach kept --offset 6`" in stderr
    daemon.start()
    go(emulator)
    done = daemon.cli("attach", "kept", "--offset", "6")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"second\n", b"other\n")


def test_a_daemon_that_hangs_is_not_waited_for_for_ever(daemon: Daemon) -> None:
    with running(daemon, "exec", "--id", "kept", "--reconnect", "1", "--", "/bin/sh", "-c", "echo first; sleep 600") as cli:
        assert line_of(cli) == b"first\n"
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            code, _, stderr = outcome(cli)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    assert code == 125 and b"does not answer" in stderr and b"attach kept" in stderr
    assert daemon.cli("cancel", "kept").returncode == 0


def test_ctrl_c_while_the_daemon_is_gone_cancels_as_soon_as_it_is_back(daemon: Daemon, emulator: Emulator, how: str) -> None:
    terminal = Terminal(daemon, "exec", "--", "/bin/sh", "-c", "echo up; sleep 600")
    terminal.until(b"up")
    getattr(daemon, how)()
    terminal.until(b"the daemon is gone, waiting for it\r\n")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.until(b"cancelling")
    daemon.start()
    code, seen = terminal.end()
    assert code == 130 and seen.count(b"waiting for it") == 1
    assert processes(emulator) == []


def test_a_second_ctrl_c_does_not_wait_for_the_daemon(daemon: Daemon) -> None:
    terminal = Terminal(daemon, "exec", "--id", "kept", "--", "/bin/sh", "-c", "echo up; sleep 600")
    terminal.until(b"up")
    daemon.kill()
    terminal.until(b"waiting for it")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.until(b"cancelling")
    press_until_it_leaves(terminal.process)
    code, seen = terminal.end()
    assert code == 130 and b"kept may still be running, as no daemon is there to cancel it; " in seen and b"attach kept" in seen
    daemon.start()
    assert daemon.cli("cancel", "kept").returncode == 0


def test_ctrl_c_before_anything_was_sent_runs_nothing(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=60_000)
    terminal = Terminal(daemon, "exec", "--", "touch", "ran")
    wait_until(emulator.sandboxes, "the sandbox to be asked for")
    daemon.kill()
    emulator.config(boot_ms=5)
    emulator.delete_sandbox(only_id(emulator))
    terminal.until(b"waiting for it")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.until(b"cancelling")
    emulator.reset_stats()
    daemon.start()
    assert terminal.end()[0] == 130
    assert emulator.count(EXEC) == 0


def test_notices_do_not_spoil_a_line_of_output(daemon: Daemon, emulator: Emulator) -> None:
    terminal = Terminal(daemon, "exec", "--", "/bin/sh", "-c", "printf half; until [ -e go ]; do sleep 0.01; done; echo ' more'")
    terminal.until(b"half")
    daemon.kill()
    terminal.until(b"half\r\ndeepinfra-sandboxd: the daemon is gone, waiting for it\r\n")
    daemon.start()
    go(emulator)
    assert terminal.end() == (0, terminal.seen) and terminal.seen.endswith(b"it\r\n more\r\n")
