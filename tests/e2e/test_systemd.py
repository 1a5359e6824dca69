"""The user units, socket activation and readiness, with systemd's own tools (package `systemd`); no manager is needed."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.daemon import Daemon, find_binary
from support.rpc import Peer

UNITS = pathlib.Path(__file__).resolve().parents[2] / "systemd"
LIMIT_S = 15.0


class Manager:
    """A service manager's notification socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(LIMIT_S)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def next(self) -> dict[str, str]:
        """The next notification's assignments; raises TimeoutError when there is none."""
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def quiet(self) -> bool:
        """Nothing has come that was not taken."""
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(LIMIT_S)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@sandboxd-test-{os.getpid()}-{tmp_path.name}"
    manager = Manager(address)
    yield manager
    manager.close()


@pytest.fixture
def activated(tmp_path: pathlib.Path, make_daemon: Callable[..., Daemon]) -> Iterator[Callable[..., tuple[Daemon, subprocess.Popen[bytes]]]]:
    """Has systemd-socket-activate listen in place of a daemon, which it becomes at the first connection."""
    started: list[subprocess.Popen[bytes]] = []

    def activate(**environment: str) -> tuple[Daemon, subprocess.Popen[bytes]]:
        daemon = make_daemon()
        daemon.environment.update(environment)
        daemon.socket.parent.mkdir(mode=0o700)
        passed = [argument for name in daemon.environment for argument in ("-E", name)]
        process = subprocess.Popen(["systemd-socket-activate", "-l", str(daemon.socket), *passed, *daemon.command("serve")],
                                   env=daemon.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        started.append(process)
        assert process.stderr is not None
        assert b"Listening on" in process.stderr.readline()
        return daemon, process

    yield activate
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def is_daemon(process: subprocess.Popen[bytes]) -> bool:
    return os.readlink(f"/proc/{process.pid}/exe") == str(find_binary().resolve())


def test_the_units_are_clean(tmp_path: pathlib.Path) -> None:
    service = (UNITS / "deepinfra-sandboxd.service.in").read_text().replace("@SANDBOXD_BINDIR@", str(find_binary().resolve().parent))
    assert "@" not in service.replace("@system-service", "")
    (tmp_path / "deepinfra-sandboxd.service").write_text(service)
    (tmp_path / "deepinfra-sandboxd.socket").write_text((UNITS / "deepinfra-sandboxd.socket").read_text())
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    # Unknown keys are only logged, below the level at which verify is silent by default.
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "SYSTEMD_LOG_LEVEL": "info", "SYSTEMD_LOG_TARGET": "console"}
    result = subprocess.run(["systemd-analyze", "verify", "--user", "deepinfra-sandboxd.service", "deepinfra-sandboxd.socket"],
                            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_first_connection_starts_the_daemon(activated: Callable[..., tuple[Daemon, subprocess.Popen[bytes]]]) -> None:
    daemon, process = activated()
    assert not is_daemon(process)
    assert not (daemon.state_dir / "lock").exists()
    with Peer(daemon.socket) as peer:
        peer.hello()
        status = peer.call("daemon.status")
    assert is_daemon(process)
    assert status["daemon"]["socket"] == str(daemon.socket)
    assert status["daemon"]["pid"] == process.pid
    assert (daemon.state_dir / "socket").read_text() == f"{daemon.socket}\n"

    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    # The manager's socket is not the daemon's to remove.
    assert stat.S_ISSOCK(daemon.socket.stat().st_mode)


def test_the_command_line_starts_and_finds_it_without_being_told_where(activated: Callable[..., tuple[Daemon, subprocess.Popen[bytes]]]) -> None:
    daemon, _ = activated()
    ready = daemon.cli("wait", "--timeout", "15")
    assert (ready.returncode, ready.stderr) == (0, b"")
    # As from cron: only the state directory is known.
    del daemon.environment["DEEPINFRA_SANDBOXD_SOCKET"]
    status = daemon.cli("status", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["daemon"]["socket"] == str(daemon.socket)


def test_readiness_is_told_when_it_answers_and_the_end_when_it_ends(manager: Manager, make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    daemon.environment["NOTIFY_SOCKET"] = manager.address
    process = daemon.spawn()
    assert manager.next()["READY"] == "1"
    with daemon.peer() as peer:  # at once: it does not have to be tried again
        assert peer.call("daemon.ping") == {}
    process.send_signal(signal.SIGTERM)
    assert manager.next()["STOPPING"] == "1"
    assert process.wait(LIMIT_S) == 0


def test_an_activated_daemon_tells_readiness_too(manager: Manager, activated: Callable[..., tuple[Daemon, subprocess.Popen[bytes]]]) -> None:
    daemon, process = activated(NOTIFY_SOCKET=manager.address)
    assert manager.quiet()
    with Peer(daemon.socket) as peer:
        peer.hello()
    assert manager.next()["READY"] == "1"
    process.send_signal(signal.SIGTERM)
    assert manager.next()["STOPPING"] == "1"
    assert process.wait(LIMIT_S) == 0


def test_a_daemon_that_cannot_start_never_says_ready(manager: Manager, make_daemon: Callable[..., Daemon]) -> None:
    first = make_daemon().start()
    second = make_daemon()  # of the same state directory
    second.environment["NOTIFY_SOCKET"] = manager.address
    process = second.spawn()
    assert process.wait(LIMIT_S) == 1
    assert manager.quiet()
    assert f"another daemon (pid {first.pid}) owns {first.state_dir}" in second.log()
    second.kill()  # takes note that it is gone


def test_a_socket_that_the_manager_holds_is_never_replaced(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    daemon.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as held:  # bound and listening, with nobody there to accept yet
        held.bind(str(daemon.socket))
        held.listen(1)
        before = daemon.socket.stat().st_ino
        assert daemon.spawn().wait(LIMIT_S) == 1
        assert daemon.socket.stat().st_ino == before
        assert "another program listens on" in daemon.log()
        assert "systemctl --user start deepinfra-sandboxd.service" in daemon.log()
        daemon.kill()  # takes note that it is gone
