"""Several daemons of one user: which of them a command line or a Python program means, and finds."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from support.daemon import REPOSITORY, Daemon

Make = Callable[..., Daemon]


@pytest.fixture
def usual(make_daemon: Make, tmp_path: pathlib.Path) -> Daemon:
    """A daemon at the usual places, with somebody's file in its sandbox."""
    daemon = make_daemon("usual")
    for name in ("DEEPINFRA_SANDBOXD_SOCKET", "DEEPINFRA_SANDBOXD_STATE_DIR"):
        del daemon.environment[name]
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    daemon.environment |= {"XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": str(daemon.directory)}
    daemon.socket = runtime / "deepinfra-sandboxd" / "rpc.sock"
    daemon.state_dir = daemon.directory / "deepinfra-sandboxd"
    return daemon


@pytest.fixture
def other(make_daemon: Make, usual: Daemon, tmp_path: pathlib.Path) -> Daemon:
    """One with a state directory of its own, of the same user."""
    daemon = make_daemon("other")
    daemon.state_dir = tmp_path / "apart"
    daemon.environment = dict(usual.environment)
    daemon.options |= {"state-dir": str(daemon.state_dir)}
    return daemon


def status_of(daemon: Daemon, *arguments: str, **environment: str) -> dict[str, object]:
    """What the daemon that the command line reaches says of itself; empty when none is found."""
    done = daemon.cli("status", "--json", *arguments, environment=environment)
    assert done.returncode in (0, 1, 3), done
    return dict(json.loads(done.stdout)["daemon"]) if done.returncode < 3 else {}


def reached_by_python(daemon: Daemon, **environment: str) -> str:
    """The pid of the daemon that a Python program reaches, or why there is none."""
    code = (
        "from deepinfra_sandboxd import Client, SandboxdError\n"
        "try: print(Client(start=False).call('daemon.status')['daemon']['pid'])\n"
        "except SandboxdError as error: print(error)\n"
    )
    variables = {**daemon.environment, "PYTHONPATH": str(REPOSITORY / "client-py"), **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_a_state_directory_means_its_own_daemon(usual: Daemon, other: Daemon) -> None:
    usual.start()
    other.socket = other.state_dir / "rpc.sock"
    other.options["socket"] = str(other.socket)
    other.start()
    named = ("--state-dir", str(other.state_dir))
    assert usual.cli("exec", "--", "sh", "-c", "echo precious >file").returncode == 0
    assert status_of(usual)["pid"] == usual.pid
    assert status_of(usual, *named)["pid"] == other.pid
    assert status_of(usual, DEEPINFRA_SANDBOXD_STATE_DIR=named[1])["pid"] == other.pid
    assert status_of(usual, *named, DEEPINFRA_SANDBOXD_SOCKET=str(usual.socket))["pid"] == other.pid
    assert reached_by_python(usual) == str(usual.pid)
    assert reached_by_python(usual, DEEPINFRA_SANDBOXD_STATE_DIR=named[1]) == str(other.pid)
    assert usual.cli("terminate", *named, "--task", "default").returncode == 1  # it has none
    assert usual.cli("exec", "--", "cat", "file").stdout == b"precious\n"


@pytest.mark.parametrize("left_behind", [True, False])
def test_no_daemon_stands_in_for_that_of_a_state_directory(usual: Daemon, other: Daemon, left_behind: bool) -> None:
    """Not even at the socket that it had once."""
    named = ("--state-dir", str(other.state_dir))
    if left_behind:
        other.socket = usual.socket
        other.start()
        assert status_of(usual, *named)["pid"] == other.pid
        other.stop()
        assert (other.state_dir / "socket").read_text() == f"{usual.socket}\n"
    usual.start()
    assert usual.cli("exec", "--", "sh", "-c", "echo precious >file").returncode == 0
    for how, environment in ((named, {}), ((), {"DEEPINFRA_SANDBOXD_STATE_DIR": named[1]})):
        done = usual.cli("terminate", *how, "--task", "default", environment=environment)
        assert done.returncode == 3 and named[1].encode() in done.stderr and b"serve --state-dir" in done.stderr, done
    assert f"the daemon of {named[1]} is not running" in reached_by_python(usual, DEEPINFRA_SANDBOXD_STATE_DIR=named[1])
    assert usual.cli("exec", "--", "cat", "file").stdout == b"precious\n"


def test_the_configuration_names_socket_and_state_directory_for_all(usual: Daemon, tmp_path: pathlib.Path) -> None:
    usual.socket, usual.state_dir = tmp_path / "elsewhere" / "x.sock", tmp_path / "chosen"
    configure(usual, f"# where\nsocket = {usual.socket}  # short\nstate-dir={usual.state_dir}\n")
    usual.start()
    assert status_of(usual)["state_dir"] == str(usual.state_dir)
    assert reached_by_python(usual) == str(usual.pid)


def test_a_configured_socket_is_not_the_only_place(usual: Daemon, tmp_path: pathlib.Path) -> None:
    """As where systemd passes another, which the daemon takes instead."""
    configure(usual, f"socket = {tmp_path / 'nowhere.sock'}\n")
    usual.options["socket"] = str(usual.socket)
    usual.start()
    assert status_of(usual)["pid"] == usual.pid
    assert reached_by_python(usual) == str(usual.pid)


def test_nor_does_it_keep_a_named_state_directorys_daemon_from_being_found(usual: Daemon, other: Daemon) -> None:
    usual.options["socket"] = str(usual.socket)
    usual.start()
    configure(usual, f"socket = {usual.socket}\n")
    other.socket = other.state_dir / "rpc.sock"
    other.options["socket"] = str(other.socket)
    other.start()
    assert status_of(usual)["pid"] == usual.pid
    assert status_of(usual, "--state-dir", str(other.state_dir))["pid"] == other.pid
    assert reached_by_python(usual, DEEPINFRA_SANDBOXD_STATE_DIR=str(other.state_dir)) == str(other.pid)


def test_a_socket_that_was_mistyped_ends_no_daemon(usual: Daemon, tmp_path: pathlib.Path) -> None:
    usual.start()
    done = usual.cli("status", "--socket", str(tmp_path / "typo.sock"))
    assert done.returncode == 3 and b"typo.sock" in done.stderr and b"kill" not in done.stderr


def configure(daemon: Daemon, text: str) -> None:
    directory = pathlib.Path(daemon.environment["XDG_CONFIG_HOME"]) / "deepinfra-sandboxd"
    directory.mkdir(parents=True)
    (directory / "config.ini").write_text(text)
