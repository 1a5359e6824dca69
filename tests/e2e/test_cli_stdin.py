"""`exec -i`: files, pipes and terminals as a command's stdin."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import signal
import subprocess

import pytest

from support.cli import LIMIT_S, Terminal, running
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.scenes import EXEC, appears, processes, without_shim, workspace


def noise(size: int, seed: int = 3) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("data", [b"", b"text\n", b"no newline", b"crlf\r\n\0nul\n", bytes(range(256)) * 1000, b"\xff" * 70000, noise(3 << 20)], ids=len)
def test_a_file_arrives_byte_for_byte(daemon: Daemon, tmp_path: pathlib.Path, data: bytes) -> None:
    source = tmp_path / "input"
    source.write_bytes(data)
    with source.open("rb") as stdin, running(daemon, "exec", "-i", "--", "/bin/sh", "-c", "cat; exit 3", stdin=stdin) as cli:
        stdout, stderr = cli.communicate(timeout=LIMIT_S)
    assert (cli.returncode, len(stdout), stderr) == (3, len(data), b"")
    assert stdout == data
    assert daemon.cli("exec", "--", "wc", "-c", input=data).stdout.strip() == b"0"  # without -i it is not touched


def test_a_small_one_costs_one_request(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(b"x" * 65536)
    daemon.cli("exec", "--", "true")
    emulator.reset_stats()
    with source.open("rb") as stdin, running(daemon, "exec", "-i", "--", "wc", "-c", stdin=stdin) as cli:
        assert cli.communicate(timeout=LIMIT_S)[0].strip() == b"65536"
    assert emulator.count() == emulator.count(EXEC) == 1


def test_64_mib_through_a_pipe(daemon: Daemon) -> None:
    data = noise(1 << 20) * 64
    done = daemon.cli("exec", "-i", "--", "sha256sum", input=data, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0] == hashlib.sha256(data).hexdigest().encode()


def test_what_is_written_later_comes_at_once(daemon: Daemon) -> None:
    with running(daemon, "exec", "-i", "--", "/bin/sh", "-c", "while read line; do echo \"got $line\"; done; echo end", stdin=subprocess.PIPE) as cli:
        assert cli.stdin is not None and cli.stdout is not None
        for word in (b"one", b"two", b"three"):
            cli.stdin.write(word + b"\n")
            cli.stdin.flush()
            assert cli.stdout.readline() == b"got " + word + b"\n"
        cli.stdin.close()
        assert cli.stdout.read() == b"end\n"
        assert cli.wait(LIMIT_S) == 0


def test_a_terminal_until_ctrl_d(daemon: Daemon) -> None:
    daemon.cli("exec", "--", "true")
    terminal = Terminal(daemon, "exec", "-i", "--", "/bin/sh", "-c", "read name; echo \"hello $name\"; cat; exit 5")
    terminal.type(b"you\n")
    terminal.until(b"hello you\r\n")
    terminal.type(b"more\n")
    terminal.until(b"more\r\nmore\r\n")  # the terminal's echo, and cat's
    terminal.type(b"\x04")
    assert terminal.end()[0] == 5


def test_ctrl_c_typed_ends_a_command_that_reads(daemon: Daemon, emulator: Emulator) -> None:
    with running(daemon, "exec", "-i", "--", "/bin/sh", "-c", "echo up; cat", stdin=subprocess.PIPE) as cli:
        assert cli.stdout is not None and cli.stdout.readline() == b"up\n"
        cli.send_signal(signal.SIGINT)
        assert cli.wait(LIMIT_S) == 130
    assert processes(emulator) == []


def test_a_command_that_stops_reading_is_not_waited_for(daemon: Daemon) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        with running(daemon, "exec", "-i", "--", "/bin/sh", "-c", "head -c 4; exit 7", stdin=endless.stdout) as cli:
            assert endless.stdout is not None
            endless.stdout.close()
            assert cli.communicate(timeout=LIMIT_S)[0] == b"y\ny\n"
            assert cli.returncode == 7
        assert endless.wait(LIMIT_S) == -signal.SIGPIPE


def test_one_that_reads_slowly_holds_up_its_writer_and_no_memory_grows(daemon: Daemon, emulator: Emulator) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless, running(
            daemon, "exec", "-i", "--", "/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done; head -c 4; exit 7", stdin=endless.stdout) as cli:
        assert endless.stdout is not None and cli.stdout is not None
        endless.stdout.close()
        assert cli.stdout.readline() == b"up\n"
        before = daemon.rss_kib()
        assert daemon.cli("exec", "--", "echo", "served").stdout == b"served\n"
        (workspace(emulator) / "go").touch()
        assert cli.communicate(timeout=LIMIT_S)[0] == b"y\ny\n"
        assert daemon.rss_kib() - before < 24 << 10


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_input_survives_the_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    """Nothing is fed twice, nothing is left out, whoever has died in between."""
    data = noise(6 << 20)
    with running(daemon, "exec", "-i", "--", "/bin/sh", "-c", "echo x >>ran; head -c 1000 >part; until [ -e go ]; do sleep 0.01; done; cat part - | sha256sum",
                 stdin=subprocess.PIPE) as cli:
        assert cli.stdin is not None
        cli.stdin.write(data[:1 << 20])
        cli.stdin.flush()
        appears(workspace_of(emulator) / "part")
        getattr(daemon, how)()
        daemon.start()
        (workspace(emulator) / "go").touch()
        stdout, stderr = cli.communicate(data[1 << 20:], timeout=60)
    assert (cli.returncode, stderr) == (0, b"")
    assert stdout.split()[0] == hashlib.sha256(data).hexdigest().encode()
    assert (workspace(emulator) / "ran").read_text() == "x\n"


def workspace_of(emulator: Emulator) -> pathlib.Path:
    wait_until(emulator.sandboxes, "a sandbox")
    return workspace(emulator)


def test_typed_across_a_restart(daemon: Daemon) -> None:
    daemon.cli("exec", "--", "true")
    terminal = Terminal(daemon, "exec", "-i", "--", "/bin/sh", "-c", "while read line; do echo \"got $line\"; done; exit 6")
    terminal.type(b"one\n")
    terminal.until(b"got one")
    daemon.kill()
    terminal.until(b"waiting for it")
    terminal.type(b"two\n")
    daemon.start()
    terminal.until(b"got two")
    terminal.type(b"\x04")
    code, seen = terminal.end()
    assert code == 6 and seen.count(b"got ") == 2


def test_the_same_id_again_feeds_nothing_twice(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(noise(2 << 20))
    request = ("exec", "-i", "--id", "mine", "--", "/bin/sh", "-c", "head -c 100000 >part; until [ -e go ]; do sleep 0.01; done; cat part - | sha256sum")
    with source.open("rb") as stdin, running(daemon, *request, stdin=stdin):
        appears(workspace_of(emulator) / "part")
    with source.open("rb") as stdin, running(daemon, *request, stdin=stdin) as cli:
        (workspace(emulator) / "go").touch()
        stdout, _ = cli.communicate(timeout=LIMIT_S)
    assert stdout.split()[0] == hashlib.sha256(source.read_bytes()).hexdigest().encode()


def test_without_the_shim(daemon: Daemon, emulator: Emulator) -> None:
    without_shim(emulator)
    data = noise(2 << 20)
    done = daemon.cli("exec", "-i", "--", "sha256sum", input=data)
    assert done.stdout.split()[0] == hashlib.sha256(data).hexdigest().encode()


def test_a_stdin_that_cannot_be_read_runs_nothing(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with running(daemon, "exec", "-i", "--", "true", stdin=directory) as cli:
            _, stderr = cli.communicate(timeout=LIMIT_S)
    finally:
        os.close(directory)
    assert cli.returncode == 125 and b"cannot read stdin: Is a directory" in stderr
    assert emulator.sandboxes() == []


def test_an_end_is_not_held_up_by_a_stdin_that_stays_open(daemon: Daemon) -> None:
    with running(daemon, "exec", "-i", "--", "/bin/sh", "-c", "exit 9", stdin=subprocess.PIPE) as cli:
        assert cli.wait(LIMIT_S) == 9
