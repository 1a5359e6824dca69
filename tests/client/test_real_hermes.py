"""The backend on hermes's own base class, from the checkout that HERMES_AGENT_SRC names.

The stub is on this process's path already, so each scenario runs in an interpreter of its own. What is
shown is that the real wait loop, session handling and registry get along with our handle and provider;
the daemon's side is played by ``ShellDaemon``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_daemon import HERE, ROOT, ShellDaemon

SOURCE = os.environ.get("HERMES_AGENT_SRC", "")
PYTHON = os.environ.get("HERMES_AGENT_PYTHON", sys.executable)

pytestmark = pytest.mark.skipif(
    not SOURCE,
    reason="HERMES_AGENT_SRC names no checkout of hermes-agent; the stub's tests cover this",
)

PRELUDE = """
import hashlib, sys, threading, time
import deepinfra_sandboxd
from tools import interrupt

class Context:
    def get_config(self, key, default=None): return default
    def register_hook(self, name, callback): pass
    def register_terminal_environment_provider(self, provider):
        from agent import terminal_env_registry
        terminal_env_registry.register_provider(provider)
        self.provider = provider

context = Context()
deepinfra_sandboxd.register(context)
provider = context.provider
environment = provider.create_environment(cwd="/root", timeout=20, task_id="default")
"""

SCENARIOS = {
    "session": """
environment.execute("export A=1; mkdir -p d; cd d")
result = environment.execute("echo a$A; pwd")
assert result["output"].split() == ["a1", environment.cwd], result
assert environment.cwd.endswith("/d") and environment._snapshot_ready
assert environment.execute("exit 7")["returncode"] == 7
""",
    "stdin": """
for content in ("", "x", "crlf\\r\\n" * 30000):
    result = environment.execute("cat > f; sha256sum < f", stdin_data=content)
    assert result["output"].split()[0] == hashlib.sha256(content.encode()).hexdigest(), result
""",
    "output": """
result = environment.execute("head -c 4000000 /dev/zero | tr '\\\\0' x; echo end")
assert result["output"] == "x" * 4000000 + "end\\n" and result["returncode"] == 0
""",
    "time-up": """
result = environment.execute("echo before; sleep 60", timeout=1)
assert result["returncode"] == 124 and "before" in result["output"], result
""",
    "interrupt": """
tid = threading.get_ident()
threading.Timer(0.3, lambda: interrupt.set_interrupt(True, tid)).start()
begun = time.monotonic()
result = environment.execute("echo before; sleep 60")
interrupt.set_interrupt(False, tid)
assert result["returncode"] == 130 and "before" in result["output"], result
assert time.monotonic() - begun < 1
""",
    "registry": """
from agent import terminal_env_registry as registry
assert registry.plugin_backend_names() == ["deepinfra"]
assert "DEEPINFRA_API_KEY" in registry.plugin_strip_env_keys()
assert registry.provider_flag("deepinfra", "skip_container_guards") is True
""",
}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_on_the_real_base_class(shell: ShellDaemon, tmp_path: Path, name: str) -> None:
    result = subprocess.run(
        [PYTHON, "-c", PRELUDE + SCENARIOS[name]],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([SOURCE, str(ROOT / "client-py")]),
            "DEEPINFRA_SANDBOXD_SOCKET": str(shell.path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert str(HERE / "hermes_stub") not in result.stderr
