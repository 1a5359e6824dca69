"""The provider: how hermes finds the backend, asks whether it can be used, and makes environments.

One provider a process, made by ``register``; it owns the client whose one connection all
environments of the process share. Only ``create_environment`` raises.
"""

from __future__ import annotations

import getpass
import logging
import os
import sys
import threading
from functools import cached_property
from typing import Any, Callable, Mapping

from agent.terminal_env_provider import TerminalEnvironmentProvider

from . import daemon
from .client import Client
from .environment import CACHE_BASE, DeepInfraEnvironment, fingerprint
from .errors import START_HINT, UPGRADE_HINT, DaemonNotRunning, Incompatible, RpcError, SandboxdError
from .execution import FEED, REATTACH

logger = logging.getLogger(__name__)

KEY_VARIABLE = "DEEPINFRA_API_KEY"
PROBE_TASK = "prompt-backend-probe"
EXPECTED = {REATTACH, FEED, "fs"}  # what a daemon of our age can do
INSTALL_HINT = f"install deepinfra-sandboxd, see its README; then {START_HINT}"
KEY_HINT = f"set {KEY_VARIABLE} (hermes hands it to the daemon), or put it into the daemon's key file"

# The plugin's settings: what hermes is told of each, and the variable that goes before what is configured.
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "plan": (
        {"type": "string", "description": "Size of new sandboxes; `deepinfra-sandboxd plans` lists them."},
        "DEEPINFRA_SANDBOX_PLAN",
    ),
    "idle_stop": (
        {"type": "string", "description": "Seconds until an idle sandbox is stopped, for a daemon started from here."},
        "DEEPINFRA_SANDBOXD_IDLE_STOP",
    ),
    "persistent": (
        {
            "type": "boolean",
            "description": "Keep sandboxes beyond their session; default: terminal.container_persistent.",
        },
        "DEEPINFRA_SANDBOX_PERSISTENT",
    ),
    "socket": (
        {"type": "string", "description": "The daemon's socket, if not at its usual place."},
        daemon.SOCKET_VARIABLE,
    ),
    "interrupt": (
        {
            "type": "select",
            "options": ["KILL", "TERM", "INT"],
            "default": "KILL",
            "description": "What an interrupt sends to the command; TERM and INT leave it a second.",
        },
        "DEEPINFRA_SANDBOX_INTERRUPT",
    ),
}


def profile_identity() -> str:
    """What tells this profile's sandboxes from all others: the real path of the hermes home.

    The native home ``~/.hermes`` is called "default", as the daemon's command line calls it; no path
    can be mistaken for that. Any error propagates: an identity that was guessed is worse than none.
    """
    from hermes_constants import get_hermes_home

    real = os.path.realpath(get_hermes_home(), strict=True)
    return "default" if real == os.path.realpath(os.path.join(daemon.home_dir(), ".hermes")) else real


def api_key() -> str | None:
    """The profile's API key, or None. Outside a profile's scope hermes raises, and so do we."""
    try:
        from agent.secret_scope import get_secret
    except ImportError:
        return os.environ.get(KEY_VARIABLE) or None
    return get_secret(KEY_VARIABLE, None) or None


class PromptProbe:
    """What the prompt builder gets: the facts every sandbox shares, without making one."""

    cwd = "/workspace"
    env: dict[str, str] = {}

    def execute(self, command: str, *args: Any, **options: Any) -> dict[str, Any]:
        return {"output": "os=Linux\nkernel=microVM\nhome=/root\ncwd=/workspace\nuser=root\n", "returncode": 0}

    def cleanup(self, force_remove: bool | None = None) -> None:
        """Nothing was made."""


class DeepInfraProvider(TerminalEnvironmentProvider):
    """The backend ``deepinfra``; *get_config* reads the plugin's settings (``SETTINGS``)."""

    name = "deepinfra"
    display_name = "DeepInfra sandbox"
    description = "Run commands in a DeepInfra sandbox, kept by the local deepinfra-sandboxd daemon."
    env_description = "a DeepInfra sandbox (Linux microVM; only /workspace survives a stop)"
    session_isolated_when_nonpersistent = True
    cache_path_base = CACHE_BASE
    strip_env_keys = frozenset({KEY_VARIABLE})

    def __init__(self, get_config: Callable[..., Any] | None = None) -> None:
        self._get_config = get_config or (lambda name, default=None: default)
        self._lock = threading.Lock()
        self._ephemeral: dict[str, DeepInfraEnvironment] = {}  # by task, until the session ends

    @cached_property
    def client(self) -> Client:
        """The one connection of the process."""
        idle_stop = self._setting("idle_stop")
        return Client(self._setting("socket"), options=["--idle-stop", str(idle_stop)] if idle_stop else [])

    def create_environment(
        self,
        *,
        cwd: str,
        timeout: int,
        task_id: str = "default",
        image: str | None = None,
        container_config: dict[str, Any] | None = None,
        backend_config: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """The environment of *task_id*, its sandbox running. *image* and the sizes in
        *container_config* are ignored: hermes fills them in for everyone, and a bigger plan costs more.
        Raises ``EnvironmentConnectionError``; errors of the profile's identity and key propagate.
        """
        if task_id == PROBE_TASK:
            return PromptProbe()
        chosen = {name: self._setting(name, backend_config or {}) for name in SETTINGS}
        persistent = chosen["persistent"]
        if persistent is None:
            persistent = (container_config or {}).get("container_persistent", True)
        with self._lock:
            client = self.client
        environment = DeepInfraEnvironment(
            client,
            (profile_identity(), task_id),
            cwd=cwd,
            timeout=timeout,
            persistent=str(persistent).lower() not in ("false", "0", "no", "off"),
            plan=chosen["plan"],
            api_key=api_key(),
            signal=str(chosen["interrupt"] or "KILL").upper(),
        )
        if not environment._persistent:
            self._ephemeral[task_id] = environment
        return environment

    def end_session(self, session_id: str | None = None, **_: Any) -> None:
        """hermes's hook at the end of a session: its ephemeral sandbox goes with it."""
        environment = self._ephemeral.pop(session_id or "", None)
        if environment is not None:
            environment.cleanup(force_remove=True)

    def is_available(self) -> bool:
        return daemon.socket_present(self._setting("socket"))

    def check_requirements(self, config: dict[str, Any]) -> bool:
        """True when the daemon can be started, so that the model gets the fix instead of no terminal."""
        if self.is_available() or daemon.startable():
            return True
        logger.error("The daemon deepinfra-sandboxd is not installed: %s", INSTALL_HINT)
        return False

    def probe(self) -> tuple[str, str]:
        """Status and detail for pickers, in less than two seconds."""
        ok, _, detail = self._diagnose(ask_cloud=False)[-1]
        if ok:
            return "ready", ""
        return ("needs_setup" if self.is_available() or daemon.startable() else "unavailable"), detail

    def doctor_checks(self) -> list[tuple[bool, str, str]]:
        return self._diagnose(ask_cloud=True)

    def get_config_schema(self) -> dict[str, dict[str, Any]]:
        """The settings, for hermes versions that show a backend's own."""
        return {name: dict(shown) for name, (shown, _) in SETTINGS.items()}

    def setup_instructions(self) -> list[str]:
        return [
            "Commands run in DeepInfra sandboxes; the daemon deepinfra-sandboxd keeps them.",
            f"1. {INSTALL_HINT} (hermes starts it by itself when it is installed)",
            f"2. {KEY_HINT}",
            "3. hermes plugins enable deepinfra-sandbox",
            "4. hermes config set terminal.backend deepinfra",
            "5. hermes doctor",
            "6. a first command: deepinfra-sandboxd exec -- uname -a",
        ]

    def post_setup(self) -> None:
        """Start the daemon, for good where there is systemd, hand it a key, and say what is still missing."""
        try:
            if daemon.start(self._setting("socket"), self.client.options, enable=True):
                hello = self.client.hello()
                key = api_key()
                if not hello.configured and key is None and sys.stdin.isatty():
                    key = getpass.getpass("DeepInfra API key (the daemon keeps it): ").strip() or None
                if not hello.configured and key is not None:
                    self.client.set_account(key)
        except Exception as error:  # the rows say what to do
            logger.debug("post_setup: %s", error)
        for ok, label, detail in self.doctor_checks():
            print(f"  {'ok' if ok else '!!'} {label}: {detail}")

    def _diagnose(self, *, ask_cloud: bool) -> list[tuple[bool, str, str]]:
        """Rows up to the first that is not well, each failure with the command that mends it."""
        label = daemon.PROGRAM
        try:
            with Client(self._setting("socket"), timeout=0.45, patience=0.2, start=False) as client:
                hello, own = client.hello(), api_key()
                rows = [(True, label, f"(version {hello.version})")]
                if missing := sorted(EXPECTED - hello.capabilities):
                    rows.append(
                        (True, label, f"is older than this plugin and lacks {', '.join(missing)}: {UPGRADE_HINT}")
                    )
                label = "DeepInfra API key"
                if not hello.configured and own is None:
                    return [*rows, (False, label, f"the daemon has none: {KEY_HINT}")]
                if hello.configured and own and hello.fingerprint not in (None, fingerprint(own)):
                    return [
                        *rows,
                        (False, label, f"{KEY_VARIABLE} is not the running daemon's key: use one key a user"),
                    ]
                for item in client.call("daemon.health")["health"]:
                    if item["severity"] == "error" and hello.configured:
                        return [*rows, (False, item["code"], f"{item['text']} {item.get('hint', '')}".strip())]
                if ask_cloud and hello.configured:
                    client.call("plan.list", timeout=5)
                return [*rows, (True, label, "(accepted)" if ask_cloud else "(known)")]
        except DaemonNotRunning as error:
            detail = f"{error}: {START_HINT if daemon.startable() else INSTALL_HINT}"
        except RpcError as error:
            label, detail = error.name, f"{error}: {error.hint}"
        except SandboxdError as error:
            label += " version" if isinstance(error, Incompatible) else ""
            detail = f"{error}: {error.hint}"
        except Exception as error:  # such as no scope for secrets: a picker must not fail for it
            detail = f"{type(error).__name__}: {error}"
        return [(False, label, detail)]

    def _setting(self, name: str, configured: Mapping[str, Any] | None = None) -> Any:
        """The variable, else hermes's own configuration of the backend, else the plugin's; None if unset."""
        value = os.environ.get(SETTINGS[name][1]) or (configured or {}).get(name)
        value = self._get_config(name, None) if value is None else value
        return None if value == "" else value


def register(ctx: Any) -> None:
    """hermes's entry: *ctx* is its plugin context."""
    provider = DeepInfraProvider(getattr(ctx, "get_config", None))
    ctx.register_terminal_environment_provider(provider)
    if (hook := getattr(ctx, "register_hook", None)) is not None:
        hook("on_session_finalize", provider.end_session)
