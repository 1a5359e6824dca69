"""Fixtures: one emulated cloud and one real daemon a test."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from support.confined import WITHOUT_UNSHARE, needs_a_filter  # noqa: E402
from support.daemon import Daemon  # noqa: E402
from support.emulator import Emulator  # noqa: E402
from support.kill_points import build_preload  # noqa: E402
from support.rpc import Peer  # noqa: E402


@pytest.fixture
def emulator(tmp_path: pathlib.Path) -> Iterator[Emulator]:
    """A cloud whose sandboxes boot in a few milliseconds."""
    with Emulator(tmp_path, boot_ms=5, start_ms=5, stop_ms=5) as emulator:
        yield emulator


@pytest.fixture(params=["keep", "kill_group"])
def on_disconnect(request: pytest.FixtureRequest, emulator: Emulator) -> str:
    """What the platform does to the process group of an exec whose connection is gone: that is not known."""
    mode: str = request.param
    emulator.config(on_disconnect=mode)
    return mode


@pytest.fixture(params=["stop", "kill"])
def how(request: pytest.FixtureRequest) -> str:
    """How the daemon ends: SIGTERM, as for an upgrade, or SIGKILL."""
    name: str = request.param
    return name


@pytest.fixture
def make_daemon(tmp_path: pathlib.Path, emulator: Emulator) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons of one state directory each; those still running at the end are stopped, and must stop well."""
    made: list[Daemon] = []

    def make(name: str = "one", api_key: str | None = "test-key", **options: Any) -> Daemon:
        daemon = Daemon(tmp_path / name, emulator.url, api_key, **options)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        print(f"--- log of the daemon in {daemon.directory}\n{daemon.log()}")
        assert daemon.stop() in (0, None)


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A library that ends its process at a write that the environment names (kill_at_write.c)."""
    return build_preload(tmp_path_factory.mktemp("preload"))


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    return make_daemon().start()


@pytest.fixture(params=["as usual", pytest.param("where unshare is forbidden", marks=needs_a_filter)])
def unpacking(request: pytest.FixtureRequest, make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon for each of the ways to unpack here: in a directory of the thread's own, and by whole paths."""
    return make_daemon(prefix=() if request.param == "as usual" else WITHOUT_UNSHARE).start()


@pytest.fixture
def peer(daemon: Daemon) -> Iterator[Peer]:
    with daemon.peer() as peer:
        yield peer
