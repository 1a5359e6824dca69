"""The scenarios, and the backend in trouble, on hermes's own base class, file synchronisation and registry, from the checkout
that HERMES_AGENT_SRC names.

The stub is on this process's path already, so they run in an interpreter of their own (HERMES_AGENT_PYTHON, else this one).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_daemon import HERE, ROOT

SOURCE = os.environ.get("HERMES_AGENT_SRC", "")
PYTHON = os.environ.get("HERMES_AGENT_PYTHON", sys.executable)

pytestmark = pytest.mark.skipif(
    not SOURCE or os.environ.get("HERMES_TIER") == "real",
    reason="HERMES_AGENT_SRC names no checkout of hermes-agent; the stub's tests cover this",
)

REGISTRY = """
import deepinfra_sandboxd

class Context:
    def get_config(self, key, default=None): return default
    def register_hook(self, name, callback): pass
    def register_terminal_environment_provider(self, provider):
        from agent import terminal_env_registry
        terminal_env_registry.register_provider(provider)

deepinfra_sandboxd.register(Context())
from agent import terminal_env_registry as registry
assert registry.plugin_backend_names() == ["deepinfra"]
assert "DEEPINFRA_API_KEY" in registry.plugin_strip_env_keys()
assert registry.provider_flag("deepinfra", "skip_container_guards") is True
"""


def run(tmp_path: Path, *arguments: str) -> None:
    result = subprocess.run(
        [PYTHON, *arguments],
        env={**os.environ, "HERMES_TIER": "real", "PYTHONPATH": os.pathsep.join([SOURCE, str(ROOT / "client-py")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("what", ["terminal_session", "client_environment", "client_handle"])
def test_the_scenarios(tmp_path: Path, what: str) -> None:
    run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(HERE / f"test_{what}.py"))


def test_the_registry(tmp_path: Path) -> None:
    run(tmp_path, "-c", REGISTRY)
