"""The provider: how hermes finds the backend, asks whether it can be used, and makes environments.

One provider a process, made by ``register``; it owns the client whose one connection all
environments of the process share. Only ``create_environment`` raises.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
import sys
import threading
import time
from functools import cache, partial
from typing import Any, Callable, Mapping

from agent.secret_scope import get_secret
from agent.terminal_env_provider import TerminalEnvironmentProvider
from tools.environments.base import EnvironmentConnectionError

from . import daemon
from .client import Client
from .daemon import KEY_VARIABLE
from .environment import (
    CACHE_BASE, OTHER_KEY_HINT, DeepInfraEnvironment, fingerprint, profile_home, profile_identity,
)  # fmt: skip
from .errors import START_HINT, DaemonNotRunning, Incompatible, NoAnswer, RpcError, SandboxdError
from .rpc import RESTART_HINT, Json, Tick

logger = logging.getLogger(__name__)

PROBE_TASK = "prompt-backend-probe"
PROBE_LIMIT, DOCTOR_LIMIT, SETUP_LIMIT = 1.5, 2.0, 10.0  # seconds for all that is asked of the daemon
INSTALL_HINT = f"install deepinfra-sandboxd, see its README; then {START_HINT}"
KEY_HINT = f"hermes config set {KEY_VARIABLE} <key> (keys: https://deepinfra.com/dash; hermes hands it to the daemon)"
SIGNALS = ("KILL", "TERM", "INT")
LEAST_IDLE_STOP = 30  # seconds, of the protocol
UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}  # in seconds
Row = tuple[bool, str, str]  # of hermes's doctor: whether it is well, of what, and a text

# The plugin's settings: the variable that goes before what is configured, and what hermes is told of each.
SETTINGS = {
    "plan": ("DEEPINFRA_SANDBOX_PLAN", "string", "Size of new sandboxes; `deepinfra-sandboxd plans` lists them."),
    "idle_stop": (
        "DEEPINFRA_SANDBOXD_IDLE_STOP", "string", "Seconds until an idle sandbox is stopped, 30 or more; also 5m, 1h.",
    ),
    "persistent": (
        "DEEPINFRA_SANDBOX_PERSISTENT", "boolean",
        "Keep sandboxes beyond their session; has to agree with terminal.container_persistent.",
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


@cache  # so that what is wrong with it is said once
def idle_seconds(chosen: str) -> int:
    """The seconds that a setting means, written as for the daemon's option; 0, also where it says nothing, is
    what that option says itself."""
    if not chosen:
        return 0
    if parts := re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd]?)", chosen.strip()):
        seconds = float(parts[1]) * UNITS[parts[2]]
        return int(min(max(LEAST_IDLE_STOP, seconds), UNITS["d"] * 365)) if seconds else 0
    logger.warning("deepinfra-sandbox: the setting `idle_stop` is %r, no time such as 300 or 5m: it is ignored", chosen)
    return 0


def is_persistent(chosen: Any, hermes: Any) -> bool:
    """Whether sandboxes outlive their session, by the plugin's setting and by hermes's; None is unsaid.

    hermes keeps its sessions apart, and tells us of their ends, by its own setting alone: where the two differ,
    nothing would ever be released, or everything be kept. Raises ``EnvironmentConnectionError`` then."""
    said = [str(value).lower() not in ("false", "0", "no", "off") for value in (chosen, hermes) if value is not None]
    if len(set(said)) < 2:
        return said[0] if said else True
    own, its = (str(value).lower() for value in said)
    raise EnvironmentConnectionError(
        f"persistence_mismatch: the plugin's setting `persistent` is {own}, hermes's own is {its}:"
        f" set `terminal.container_persistent: {own}`, or leave the plugin's out",
        retry_hint=f"hermes config set terminal.container_persistent {own}",
    )


def tasks_of(session: str, home: str) -> list[str]:
    """What the tasks of a *session* of the profile at *home* may be called: newer hermes puts the profile in front
    of the session's id, and passes the bare id to its hooks."""
    root, name = os.path.split(home)
    profile = name if os.path.basename(root) == "profiles" else "default"
    return [session, f"home:{home}:{session}", f"profile:{profile}:{session}"]


def api_key() -> str | None:
    """The profile's API key, or None. Outside a profile's scope hermes raises, and so do we."""
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
        self._clients: dict[str | None, Client] = {}
        self._ephemeral: dict[tuple[str, str], DeepInfraEnvironment] = {}  # used since their session ended

    @property
    def client(self) -> Client:
        """The connection of the plugin's own settings, one a process."""
        return self._client({})

    def _client(self, configured: Mapping[str, Any]) -> Client:
        socket = self._setting("socket", configured)
        with self._lock:
            if socket not in self._clients:
                self._clients[socket] = Client(socket, hand_over=False)  # it is the profile's key that counts
            return self._clients[socket]

    def create_environment(
        self,
        *,
        cwd: str,
        timeout: int,
        task_id: str = "default",
        image: str | None = None,
        container_config: Json | None = None,
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
        chosen = partial(self._setting, configured=configured)
        persistent = is_persistent(chosen("persistent"), (container_config or {}).get("container_persistent"))
        return DeepInfraEnvironment(
            self._client(configured),
            (profile_identity(profile_home()), task_id),
            cwd=cwd,
            timeout=timeout,
            persistent=persistent,
            settings=lambda: (chosen("plan"), idle_seconds(str(chosen("idle_stop") or ""))),
            api_key=api_key,
            signal=signal_name(chosen("interrupt")),
            used=self._used,
        )

    def _used(self, environment: DeepInfraEnvironment, in_use: bool) -> None:
        if not in_use:
            self._ephemeral.pop(environment.key, None)
        elif not environment._persistent:
            self._ephemeral[environment.key] = environment

    def end_session(self, session_id: str | None = None, **_: Any) -> None:
        """hermes's hook at the end of a session: its ephemeral sandbox goes with it.

        Only one of the profile in scope; what is not found is left to the daemon, which ends it when it is idle
        or this process has ended."""
        try:
            home = profile_home()
        except Exception as error:  # such as of a home that is not there any more
            return logger.debug("deepinfra-sandbox: whose session ended is not known: %s", error)
        for task in tasks_of(session_id or "", home):
            if (environment := self._ephemeral.pop((profile_identity(home), task), None)) is not None:
                return environment.end_session()

    def is_available(self) -> bool:
        return daemon.socket_present(self._setting("socket"))

    def _in_reach(self, configured: Mapping[str, Any]) -> bool:
        """Whether there is a daemon, or one that can be started."""
        return daemon.socket_present(self._setting("socket", configured)) or daemon.installed() is not None

    def check_requirements(self, config: Json) -> bool:
        """True when the daemon can be started, so that the model gets the fix instead of no terminal."""
        if self._in_reach(config.get("backend_config") or {}):
            return True
        logger.error("The daemon deepinfra-sandboxd is not installed: %s", INSTALL_HINT)
        return False

    def probe(self) -> tuple[str, str]:
        """Status and detail for pickers, in less than two seconds. Never raises."""
        return self.probe_with_config({})

    def probe_with_config(self, config: Mapping[str, Any]) -> tuple[str, str]:
        """``probe`` of newer hermes, which passes what it has configured for the backend."""
        ok, _, detail = self._diagnose(PROBE_LIMIT, config, ask_cloud=False)[-1]
        if ok:
            return "ready", ""
        with contextlib.suppress(Exception):  # such as of hermes's configuration, which the detail tells
            if self._in_reach(config):
                return "needs_setup", detail
        return "unavailable", detail

    def doctor_checks(self) -> list[Row]:
        """Also a part of ``hermes status``, so it does not wait long for the cloud."""
        return self._diagnose(DOCTOR_LIMIT, {}, ask_cloud=True)

    def get_config_schema(self) -> dict[str, Json]:
        """The settings, for hermes versions that show a backend's own."""
        schema: dict[str, Json] = {
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
            daemon.start(self._setting("socket"), enable=True)
            known = self.client.hello().configured  # also of one that runs and that we could not start
            if not known or any(item["code"] == "unauthorized" for item in self.client.call("daemon.health")["health"]):
                key = api_key()
                if key is None and sys.stdin.isatty():
                    key = getpass.getpass("DeepInfra API key (the daemon keeps it): ").strip() or None
                if key is not None:
                    self.client.set_account(key)
        except Exception as error:
            problem = error
        rows = self._diagnose(SETUP_LIMIT, {}, ask_cloud=True)
        if problem is not None:  # the doctor does not try what has just failed: that is the news
            rows = [*rows[:-1], _row(problem, rows[-1][1])]
        for ok, label, detail in rows:
            print(f"  {'ok' if ok else '!!'} {label}: {detail}")

    def _diagnose(self, limit: float, configured: Mapping[str, Any], *, ask_cloud: bool) -> list[Row]:
        """Rows up to the first that is not well, each failure with the command that mends it."""
        label, until = daemon.PROGRAM, time.monotonic() + limit

        def tick() -> None:
            if time.monotonic() > until:
                raise NoAnswer(f"the daemon did not answer within {limit} s", hint=RESTART_HINT)

        try:
            socket = self._setting("socket", configured)
            with Client(socket, timeout=limit, patience=0.2, start=False, hand_over=False) as client:
                return self._ask(client, tick, ask_cloud)
        except Exception as error:  # such as no scope for secrets: a picker must not fail for it
            return [_row(error, label)]

    def _ask(self, client: Client, tick: Tick, ask_cloud: bool) -> list[Row]:
        hello, own = client.connected(tick).hello, api_key()
        first, label = (True, daemon.PROGRAM, f"(version {hello.version})"), "DeepInfra API key"
        if not hello.configured and own is None:
            return [first, (False, label, f"the daemon has none: {KEY_HINT}")]
        if not hello.configured:
            return [first, (True, label, f"(not yet tried: the first command hands {KEY_VARIABLE} to the daemon)")]
        try:
            row = self._ask_about_key(client, tick, ask_cloud, label)
        except SandboxdError as error:
            row = _row(error, label)
        if own is None or hello.fingerprint in (None, fingerprint(own)):
            return [first, row]
        if row[1] == "unauthorized":  # then the daemon takes another
            text = f"(the daemon's is refused; not yet tried: the next command hands {KEY_VARIABLE} to it)"
            return [first, (True, label, text)]
        if row[1] == label:
            row = (False, label, f"{KEY_VARIABLE} is not the running daemon's key: {OTHER_KEY_HINT}")
        return [first, row]

    def _ask_about_key(self, client: Client, tick: Tick, ask_cloud: bool, label: str) -> Row:
        """What the daemon, and at its word the cloud, say of the daemon's own key."""
        for item in client.call("daemon.health", tick=tick)["health"]:
            if item["severity"] == "error":
                return False, item["code"], _with_fix(item["code"], f"{item['text']} {item.get('hint', '')}".strip())
        if not ask_cloud:
            return True, label, "(known)"
        try:
            client.call("plan.list", tick=tick)
        except NoAnswer:  # of the cloud: the daemon has just answered
            text = "the daemon has one; DeepInfra did not say in time whether it is good: deepinfra-sandboxd doctor"
            return False, label, text
        return True, label, "(accepted)"

    def _setting(self, name: str, configured: Mapping[str, Any] = {}) -> Any:
        """The variable, else hermes's own configuration of the backend, else the plugin's; None if unset."""
        value = os.environ.get(SETTINGS[name][0]) or configured.get(name)
        value = self._get_config(name, None) if value is None else value
        return None if value == "" else value


def _with_fix(name: str, text: str) -> str:
    """*text* on the daemon's error *name*, with the command that mends it where that is one of hermes's."""
    return f"{text}; {KEY_HINT}" if name == "unauthorized" else text


def _row(error: Exception, label: str) -> Row:
    """What a check has to say of *error*, met while *label* was looked at."""
    if isinstance(error, RpcError):
        return False, error.name, _with_fix(error.name, f"{error}: {error.hint}")
    if isinstance(error, DaemonNotRunning) and daemon.installed() is None:
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
