"""One daemon owns a state directory, and one listens on a socket; nobody is ever pushed aside, and nobody else is let in."""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import Peer

Make = Callable[..., Daemon]
TEN = 10


def refused(daemon: Daemon) -> str:
    """Starts a daemon that must give up by itself; returns the last line it said."""
    process = daemon.spawn()
    assert process.wait(15) == 1
    daemon.kill()
    return daemon.log().splitlines()[-1]


def second(make_daemon: Make, first: Daemon, *, state: bool, socket: bool) -> Daemon:
    """Another daemon, with the state directory or the socket of the first."""
    other = make_daemon("two")
    if state:
        other.state_dir = first.state_dir
        other.environment["DEEPINFRA_SANDBOXD_STATE_DIR"] = str(first.state_dir)
    if socket:
        other.socket = first.socket
        other.environment["DEEPINFRA_SANDBOXD_SOCKET"] = str(first.socket)
    return other


def serves(daemon: Daemon) -> bool:
    with daemon.peer() as peer:
        return bool(peer.status()["daemon"]["pid"] == daemon.pid)


@pytest.mark.parametrize("round_", range(3))
def test_of_ten_started_at_once_one_serves(tmp_path: pathlib.Path, emulator: Emulator, round_: int) -> None:
    ten = [Daemon(tmp_path / "one", emulator.url) for _ in range(TEN)]
    for number, daemon in enumerate(ten):
        daemon.log_file = daemon.directory / f"log.{number}"
    processes = [daemon.spawn() for daemon in ten]
    try:
        wait_until(lambda: sum(process.poll() is not None for process in processes) == TEN - 1, "nine have given up", 15)
        owner = next(daemon for daemon in ten if daemon.alive())
        wait_until(owner.accepts, "the owner listens")
        assert serves(owner)
        for daemon, process in zip(ten, processes, strict=True):
            if daemon is not owner:
                assert process.returncode == 1
                said = daemon.log().splitlines()
                assert len(said) == 1, said
                assert f"(pid {owner.pid})" in said[0] and str(owner.state_dir) in said[0]
        assert (owner.state_dir / "lock").read_text() == f"{owner.pid}\n"
    finally:
        for daemon in ten:
            assert daemon.stop() in (0, 1)


@pytest.mark.parametrize("directory", ["made anew", "gone for good"])
def test_a_daemon_whose_socket_was_removed_is_found_again(daemon: Daemon, directory: str) -> None:
    """As when the last logout takes the runtime directory along, and a daemon in tmux lives on."""
    del daemon.environment["DEEPINFRA_SANDBOXD_SOCKET"]
    with daemon.peer() as before:
        shutil.rmtree(daemon.socket.parent)
        if directory == "gone for good":
            daemon.socket.parent.write_text("in the way")
        else:
            daemon.socket.parent.mkdir(mode=0o700)
            lost = daemon.cli("status")
            assert lost.returncode == 3 and f"kill {daemon.pid}".encode() in lost.stderr, lost
            doctor = daemon.cli("doctor")
            assert doctor.returncode == 1 and f"pid {daemon.pid}".encode() in doctor.stdout
        wait_until(lambda: daemon.cli("status").returncode == 0, "it listens again")
        assert before.call("daemon.ping") == {}  # who is connected stays so
        socket = pathlib.Path(before.status()["daemon"]["socket"])
    assert socket == (daemon.socket if directory == "made anew" else daemon.state_dir / "rpc.sock")
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    daemon.socket = socket
    assert serves(daemon)
    assert daemon.stop() == 0 and not socket.exists()


def test_a_second_one_on_the_same_state_says_who_has_it(make_daemon: Make, daemon: Daemon) -> None:
    other = second(make_daemon, daemon, state=True, socket=False)
    said = refused(other)
    assert f"another daemon (pid {daemon.pid}) owns {daemon.state_dir}" in said
    assert not other.socket.exists()
    assert serves(daemon)


@pytest.mark.parametrize("recorded", ["", "no number", "of a dead process"])
def test_a_pid_that_is_not_the_owners_is_not_named(make_daemon: Make, recorded: str) -> None:
    """As in the moment between somebody's taking the lock and writing its pid."""
    with subprocess.Popen(["true"]) as dead:
        pass
    daemon = make_daemon()
    daemon.state_dir.mkdir(mode=0o700)
    with open(daemon.state_dir / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{dead.pid}\n" if recorded == "of a dead process" else recorded)
        lock.flush()
        said = refused(daemon)
        assert f"another daemon owns {daemon.state_dir}" in said


def test_the_lock_of_a_killed_daemon_is_free(daemon: Daemon) -> None:
    for _ in range(5):
        daemon.kill()
        assert daemon.socket.exists()  # nobody tidied up
        daemon.start()
        assert serves(daemon)


def test_a_stale_socket_is_replaced(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(daemon.socket))  # and never listened on, nor removed
    daemon.start()
    assert serves(daemon)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with a full backlog"])
def test_a_live_listener_is_never_replaced(make_daemon: Make, busy: bool) -> None:
    """Least of all because it does not answer: a busy daemon is not a dead one."""
    daemon = make_daemon()
    daemon.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(daemon.socket))
        foreign.listen(1)
        waiting = []
        for _ in range(8 if busy else 0):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            try:
                client.connect(str(daemon.socket))
            except BlockingIOError:
                break
        before = daemon.socket.lstat()
        said = refused(daemon)
        assert "another program listens on" in said and str(daemon.socket) in said
        assert daemon.socket.lstat().st_ino == before.st_ino
        for client in waiting:
            client.close()
        with socket.socket(socket.AF_UNIX) as client:
            if not busy:
                client.connect(str(daemon.socket))
                foreign.settimeout(5)
                foreign.accept()[0].close()
    daemon.start()  # now that it is gone
    assert serves(daemon)


def test_a_daemon_of_another_state_directory_on_the_same_socket_is_refused(make_daemon: Make, daemon: Daemon) -> None:
    other = second(make_daemon, daemon, state=False, socket=True)
    said = refused(other)
    assert "another program listens on" in said
    assert serves(daemon)
    daemon.stop()
    assert not daemon.socket.exists()
    other.start()
    assert serves(other)


def test_a_daemon_removes_no_socket_but_its_own(make_daemon: Make, daemon: Daemon) -> None:
    daemon.socket.unlink()
    other = second(make_daemon, daemon, state=False, socket=True).start()
    daemon.stop()
    assert serves(other)


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link", "link to a file"])
def test_what_is_no_socket_is_left_alone(make_daemon: Make, kind: str, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon()
    daemon.socket.parent.mkdir(mode=0o700)
    precious = tmp_path / "precious"
    if kind == "file":
        daemon.socket.write_text("precious")
    elif kind == "directory":
        daemon.socket.mkdir()
    else:
        daemon.socket.symlink_to(precious)
        if kind == "link to a file":
            precious.write_text("precious")
    before = daemon.socket.lstat()
    said = refused(daemon)
    assert f"{daemon.socket} exists and is not a socket" in said
    assert (daemon.socket.lstat().st_ino, daemon.socket.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert precious.exists() == (kind == "link to a file")


@pytest.mark.parametrize("bytes_over", [1, 13, 500])
def test_a_socket_path_that_is_too_long_is_a_clear_error(tmp_path: pathlib.Path, emulator: Emulator, bytes_over: int) -> None:
    daemon = Daemon(tmp_path, emulator.url)
    base = f"{tmp_path}/"
    room = 107  # sockaddr_un, less the final NUL
    path = base + "s" * (room + bytes_over - len(base)) if bytes_over < 500 else base + "/".join(["d" * 100] * 6)
    daemon.environment["DEEPINFRA_SANDBOXD_SOCKET"] = path
    process = daemon.spawn()
    assert process.wait(15) == 2
    daemon.kill()
    said = daemon.log()
    assert f"{len(path)} bytes" in said and "107" in said and "DEEPINFRA_SANDBOXD_SOCKET" in said
    assert not daemon.state_dir.exists()  # refused before anything was touched


def test_the_longest_socket_path_works(emulator: Emulator, tmp_path: pathlib.Path) -> None:
    short = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"sandboxd-test-{os.getpid()}"
    try:
        daemon = Daemon(tmp_path, emulator.url)
        daemon.socket = short / ("s" * (107 - len(str(short)) - 1))
        assert len(str(daemon.socket)) == 107
        daemon.environment["DEEPINFRA_SANDBOXD_SOCKET"] = str(daemon.socket)
        with daemon:
            assert serves(daemon)
    finally:
        if short.exists():
            short.rmdir()


def test_the_socket_is_for_its_owner_only(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.socket.lstat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.socket.parent.lstat().st_mode) == 0o700


# Says what became of a call under another user id.
CALLER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(sys.argv[1])
        try:
            s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"client":"x","protocol":1}}\\n')
            print("answered" if s.recv(100) else "closed")
        except (BrokenPipeError, ConnectionResetError):
            print("closed")
except PermissionError:
    print("denied")
"""


def call_as_nobody(daemon: Daemon) -> str:
    done = subprocess.run([sys.executable, "-c", CALLER, str(daemon.socket)], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


@pytest.fixture
def reachable(tmp_path: pathlib.Path) -> Iterator[None]:
    """The way to the test's own directory is open to every user while the test runs."""
    opened = []
    for directory in [tmp_path, *tmp_path.parents]:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if directory.stat().st_uid == os.geteuid() and mode & 0o001 == 0:
            opened.append((directory, mode))
            directory.chmod(mode | 0o001)
    yield
    for directory, mode in opened:
        directory.chmod(mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="taking another user's id takes root")
def test_another_user_is_not_let_in(daemon: Daemon, reachable: None) -> None:
    daemon.directory.chmod(0o755)
    assert call_as_nobody(daemon) == "denied"
    # Even if somebody opened the doors: the daemon looks who it is.
    daemon.socket.parent.chmod(0o755)
    daemon.socket.chmod(0o666)
    assert call_as_nobody(daemon) == "closed"
    wait_until(lambda: re.search(r"another user \(uid 65534\) was refused", daemon.log()), "the log says so")
    assert serves(daemon)
    with daemon.peer() as peer:
        assert isinstance(peer, Peer) and peer.status()["counters"]["rpc_requests"] > 0
    daemon.socket.parent.chmod(0o700)
