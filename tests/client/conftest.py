"""Fixtures of the Python client's tests.

Everything runs on the stub in ``hermes_stub``. With ``HERMES_AGENT_SRC`` set, ``test_real_hermes.py`` runs what a backend
does for hermes once more on that checkout, in an interpreter of its own, which ``HERMES_TIER=real`` marks.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path
from typing import Iterator

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
REAL = os.environ["HERMES_AGENT_SRC"] if os.environ.get("HERMES_TIER") == "real" else None
for path in (str(HERE), REAL or str(HERE / "hermes_stub"), str(ROOT / "client-py")):
    if path not in sys.path:
        sys.path.insert(0, path)

from fake_daemon import FakeDaemon, ShellDaemon  # noqa: E402

from deepinfra_sandboxd import Client  # noqa: E402
from deepinfra_sandboxd.provider import DeepInfraProvider  # noqa: E402
from tools.environments import base  # noqa: E402


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No daemon, key or profile of the machine reaches a test."""
    for name in ("DEEPINFRA_API_KEY", "DEEPINFRA_SANDBOXD_SOCKET", "DEEPINFRA_SANDBOX_PLAN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("deepinfra_sandboxd.daemon.USUAL_DIRECTORIES", str(tmp_path / "usual"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("DEEPINFRA_SANDBOXD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    if REAL is None:  # the stub needs no more of this Python than its name
        monkeypatch.setattr(tarfile, "data_filter", getattr(tarfile, "data_filter", None), raising=False)
    home = tmp_path / "hermes-home"
    home.mkdir()
    monkeypatch.setenv("HERMES_HOME", str(home))


@pytest.fixture(autouse=True)
def contract_kept() -> Iterator[None]:
    """Fails a test in which the backend did what hermes's interface forbids."""
    violations: list[str] = getattr(base, "violations", [])  # hermes itself keeps no list
    violations.clear()
    yield
    assert violations == []


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path / "fake.sock")
    yield daemon
    daemon.stop()
    assert daemon.failures == []


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[ShellDaemon]:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    daemon = ShellDaemon(tmp_path / "shell.sock", workspace)
    yield daemon
    daemon.stop()
    assert daemon.failures == []


@pytest.fixture
def client(fake: FakeDaemon) -> Iterator[Client]:
    with Client(str(fake.path), timeout=5, patience=5) as client:
        yield client


@pytest.fixture
def provider(shell: ShellDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeepInfraProvider]:
    monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(shell.path))
    provider = DeepInfraProvider()
    provider.client.patience = 0.5
    yield provider
    provider.client.close()
