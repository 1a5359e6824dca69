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
import time
from typing import Any, Callable, Mapping

from agent.terminal_env_provider import TerminalEnvironmentProvider

from . import daemon
from .client import Client
from .environment import CACHE_BASE, DeepInfraEnvironment, fingerprint
from .errors import START_HINT, DaemonNotRunning, Incompatible, NoAnswer, RpcError, SandboxdError
from .rpc import RESTART_HINT, Tick

logger = logging.getLogger(__name__)

KEY_VARIABLE = "DEEPINFRA_API_KEY"
PROBE_TASK = "prompt-backend-probe"
PROBE_LIMIT, DOCTOR_LIMIT, SETUP_LIMIT = 1.5, 2.0, 10.0  # seconds for all that is asked of the daemon
INSTALL_HINT = f"install deepinfra-sandboxd, see its README; then {START_HINT}"
KEY_HINT = f"hermes config set {KEY_VARIABLE} <key> (keys: https://deepinfra.com/dash; hermes hands it to the daemon)"
OTHER_KEY_HINT = (
    f"hermes config set {KEY_VARIABLE} <the daemon's key>; or, for a daemon of this key's own, set"
    f" {daemon.SOCKET_VARIABLE} and {daemon.STATE_VARIABLE} for hermes and: deepinfra-sandboxd serve &"
)
SIGNALS = ("KILL", "TERM", "INT")

# The plugin's settings: the variable that goes before what is configured, and what hermes is told of each.
SETTINGS = {
    "plan": ("DEEPINFRA_SANDBOX_PLAN", "string", "Size of new sandboxes; `deepinfra-sandboxd plans` lists them."),
    "idle_stop": (
        "DEEPINFRA_SANDBOXD_IDLE_STOP", "string", "Seconds until an idle sandbox is stopped, for a daemon started here.",
    ),
    "persistent": (
        "DEEPINFRA_SANDBOX_PERSISTENT", "boolean",
        "Keep sandboxes beyond their session; default: terminal.container_persistent.",
    ),
    "socket": (daemon.SOCKET_VARIABLE, "string", "The daemon's socket, if not at its usual place."),
    "interrupt": (
        "DEEPINFRA_SANDBOX_INTERRUPT", "select", "What an interrupt sends to the command; TERM and INT leave it a second.",
    ),
}  # fmt: skip


def signal_name(chosen: Any) -> str:
    """The signal that a setting means, with or without SIG. The daemon would refuse another one, and
    an interrupt would end nothing."""
    name = str(chosen or "KILL").upper().removeprefix("SIG")
    if name in SIGNALS:
        return name
    logger.warning("deepinfra-sandbox: the setting `interrupt` is %r, not one of %s: KILL is sent", chosen, SIGNALS)
    return "KILL"


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
        self._clients: dict[tuple[Any, Any], Client] = {}
        self._ephemeral: dict[str, DeepInfraEnvironment] = {}  # by task, those used since their session ended

    @property
    def client(self) -> Client:
        """The connection of the plugin's own settings, one a process."""
        return self._client({})

    def _client(self, configured: Mapping[str, Any]) -> Client:
        socket, idle_stop = self._setting("socket", configured), self._setting("idle_stop", configured)
        with self._lock:
            if (client := self._clients.get((socket, idle_stop))) is None:
                client = Client(socket, options=["--idle-stop", str(idle_stop)] if idle_stop else [])
                self._clients[socket, idle_stop] = client
            return client

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
        configured = backend_config or {}
        chosen = {name: self._setting(name, configured) for name in SETTINGS}
        persistent = chosen["persistent"]
        if persistent is None:
            persistent = (container_config or {}).get("container_persistent", True)
        return DeepInfraEnvironment(
            self._client(configured),
            (profile_identity(), task_id),
            cwd=cwd,
            timeout=timeout,
            persistent=str(persistent).lower() not in ("false", "0", "no", "off"),
            plan=chosen["plan"],
            api_key=api_key(),
            signal=signal_name(chosen["interrupt"]),
            used=self._used,
        )

    def _used(self, environment: DeepInfraEnvironment) -> None:
        if not environment._persistent:
            self._ephemeral[environment.key[1]] = environment

    def end_session(self, session_id: str | None = None, **_: Any) -> None:
        """hermes's hook at the end of a session: its ephemeral sandbox goes with it."""
        environment = self._ephemeral.pop(session_id or "", None)
        if environment is not None:
            environment.end_session()

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
        ok, _, detail = self._diagnose(PROBE_LIMIT, ask_cloud=False)[-1]
        if ok:
            return "ready", ""
        return ("needs_setup" if self.is_available() or daemon.startable() else "unavailable"), detail

    def doctor_checks(self) -> list[tuple[bool, str, str]]:
        """Also a part of ``hermes status``, so it does not wait long for the cloud."""
        return self._diagnose(DOCTOR_LIMIT, ask_cloud=True)

    def get_config_schema(self) -> dict[str, dict[str, Any]]:
        """The settings, for hermes versions that show a backend's own."""
        schema: dict[str, dict[str, Any]] = {
            name: {"type": kind, "description": text} for name, (_, kind, text) in SETTINGS.items()
        }
        schema["interrupt"] |= {"options": list(SIGNALS), "default": "KILL"}
        return schema

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
        problem: Exception | None = None
        try:
            daemon.start(self._setting("socket"), self.client.options, enable=True)
            if not self.client.hello().configured:  # also one that runs and that we could not start
                key = api_key()
                if key is None and sys.stdin.isatty():
                    key = getpass.getpass("DeepInfra API key (the daemon keeps it): ").strip() or None
                if key is not None:
                    self.client.set_account(key)
        except Exception as error:
            problem = error
        rows = self._diagnose(SETUP_LIMIT, ask_cloud=True)
        if problem is not None:  # the doctor does not try what has just failed: that is the news
            rows = [*rows[:-1], _row(problem, rows[-1][1])]
        for ok, label, detail in rows:
            print(f"  {'ok' if ok else '!!'} {label}: {detail}")

    def _diagnose(self, limit: float, *, ask_cloud: bool) -> list[tuple[bool, str, str]]:
        """Rows up to the first that is not well, each failure with the command that mends it."""
        label, until = daemon.PROGRAM, time.monotonic() + limit

        def tick() -> None:
            if time.monotonic() > until:
                raise NoAnswer(f"the daemon did not answer within {limit} s", hint=RESTART_HINT)

        try:
            with Client(self._setting("socket"), timeout=limit, patience=0.2, start=False) as client:
                return self._ask(client, tick, ask_cloud)
        except Exception as error:  # such as no scope for secrets: a picker must not fail for it
            return [_row(error, label)]

    def _ask(self, client: Client, tick: Tick, ask_cloud: bool) -> list[tuple[bool, str, str]]:
        hello, own = client.connected(tick).hello, api_key()
        rows, label = [(True, daemon.PROGRAM, f"(version {hello.version})")], "DeepInfra API key"
        if not hello.configured:
            if own is None:
                return [*rows, (False, label, f"the daemon has none: {KEY_HINT}")]
            return [*rows, (True, label, f"(not yet tried: the first command hands {KEY_VARIABLE} to the daemon)")]
        if own and hello.fingerprint not in (None, fingerprint(own)):
            return [*rows, (False, label, f"{KEY_VARIABLE} is not the running daemon's key: {OTHER_KEY_HINT}")]
        try:
            for item in client.call("daemon.health", tick=tick)["health"]:
                if item["severity"] == "error":
                    return [*rows, (False, item["code"], f"{item['text']} {item.get('hint', '')}".strip())]
            if not ask_cloud:
                return [*rows, (True, label, "(known)")]
            try:
                client.call("plan.list", tick=tick)
            except NoAnswer:  # of the cloud: the daemon has just answered
                text = "the daemon has one; DeepInfra did not say in time whether it is good: deepinfra-sandboxd doctor"
                return [*rows, (False, label, text)]
        except SandboxdError as error:
            return [*rows, _row(error, label)]
        return [*rows, (True, label, "(accepted)")]

    def _setting(self, name: str, configured: Mapping[str, Any] | None = None) -> Any:
        """The variable, else hermes's own configuration of the backend, else the plugin's; None if unset."""
        value = os.environ.get(SETTINGS[name][0]) or (configured or {}).get(name)
        value = self._get_config(name, None) if value is None else value
        return None if value == "" else value


def _row(error: Exception, label: str) -> tuple[bool, str, str]:
    """What a check has to say of *error*, met while *label* was looked at."""
    if isinstance(error, RpcError):
        return False, error.name, f"{error}: {error.hint}"
    if isinstance(error, DaemonNotRunning) and not daemon.startable():
        return False, daemon.PROGRAM, f"{error}: {INSTALL_HINT}"
    if isinstance(error, SandboxdError):
        label = f"{daemon.PROGRAM} version" if isinstance(error, Incompatible) else daemon.PROGRAM
        return False, label, f"{error}: {error.hint}"
    return False, label, f"{type(error).__name__}: {error}"


def register(ctx: Any) -> None:
    """hermes's entry: *ctx* is its plugin context."""
    provider = DeepInfraProvider(getattr(ctx, "get_config", None))
    ctx.register_terminal_environment_provider(provider)
    if (hook := getattr(ctx, "register_hook", None)) is not None:
        hook("on_session_finalize", provider.end_session)
