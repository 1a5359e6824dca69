"""The provider: how hermes finds the backend, asks whether it can be used, and makes environments.

One provider a process, made by ``register``; it owns the client whose one connection all
environments of the process share. Only ``create_environment`` raises.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from typing import Any, Callable

from agent.terminal_env_provider import TerminalEnvironmentProvider

from .client import Client
from .environment import DeepInfraEnvironment, fingerprint
from .errors import START_HINT, DaemonNotRunning, Incompatible, SandboxdError
from .paths import home_dir, socket_present

logger = logging.getLogger(__name__)

KEY_VARIABLE = "DEEPINFRA_API_KEY"
PLAN_VARIABLE = "DEEPINFRA_SANDBOX_PLAN"
PROBE_TASK = "prompt-backend-probe"
INSTALL_HINT = "install deepinfra-sandboxd, see its README; then " + START_HINT
KEY_HINT = (
    f"set {KEY_VARIABLE} (hermes hands it to the daemon), or put it into the daemon's key file"
)


def profile_identity() -> str:
    """What tells this profile's sandboxes from all others: the real path of the hermes home.

    The native home ``~/.hermes`` is called "default", as the daemon's command line calls it; no path
    can be mistaken for that. Any error propagates: an identity that was guessed is worse than none.
    """
    from hermes_constants import get_hermes_home

    real = os.path.realpath(get_hermes_home(), strict=True)
    native = os.path.realpath(os.path.join(home_dir(), ".hermes"))
    return "default" if real == native else real


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
        facts = "os=Linux\nkernel=microVM\nhome=/root\ncwd=/workspace\nuser=root\n"
        return {"output": facts, "returncode": 0}

    def cleanup(self, force_remove: bool | None = None) -> None:
        """Nothing was made."""


class DeepInfraProvider(TerminalEnvironmentProvider):
    """The backend ``deepinfra``; *get_config* reads the plugin's settings (``plan``, ``socket``)."""

    name = "deepinfra"
    display_name = "DeepInfra sandbox"
    description = (
        "Run commands in a DeepInfra sandbox, kept by the local deepinfra-sandboxd daemon."
    )
    env_description = "a DeepInfra sandbox (Linux microVM; only /workspace survives a stop)"
    session_isolated_when_nonpersistent = True
    cache_path_base = "/workspace/.hermes"
    strip_env_keys = frozenset({KEY_VARIABLE})

    def __init__(self, get_config: Callable[..., Any] | None = None) -> None:
        self._get_config = get_config
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._ephemeral: dict[str, DeepInfraEnvironment] = {}  # by task, until the session ends

    def create_environment(
        self,
        *,
        cwd: str,
        timeout: int,
        task_id: str = "default",
        image: str | None = None,
        container_config: dict[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """The environment of *task_id*, its sandbox running. *image* and the sizes in
        *container_config* are ignored: hermes fills them in for everyone, and a bigger plan costs more.
        Raises ``EnvironmentConnectionError``; errors of the profile's identity and key propagate.
        """
        if task_id == PROBE_TASK:
            return PromptProbe()
        persistent = bool((container_config or {}).get("container_persistent", True))
        environment = DeepInfraEnvironment(
            self._shared_client(),
            (profile_identity(), task_id),
            cwd=cwd,
            timeout=timeout,
            persistent=persistent,
            plan=os.environ.get(PLAN_VARIABLE) or self._setting("plan"),
            api_key=api_key(),
        )
        if not persistent:
            self._ephemeral[task_id] = environment
        return environment

    def end_session(self, session_id: str | None = None, **_: Any) -> None:
        """hermes's hook at the end of a session: its ephemeral sandbox goes with it."""
        environment = self._ephemeral.pop(session_id or "", None)
        if environment is not None:
            environment.cleanup(force_remove=True)

    def is_available(self) -> bool:
        return socket_present(self._setting("socket"))

    def check_requirements(self, config: dict[str, Any]) -> bool:
        """True when the daemon can be started, so that the model gets the fix instead of no terminal."""
        if self.is_available():
            return True
        installed = shutil.which("deepinfra-sandboxd") is not None
        logger.error(
            "The daemon deepinfra-sandboxd is %s: %s",
            "not running" if installed else "not installed",
            START_HINT if installed else INSTALL_HINT,
        )
        return installed

    def probe(self) -> tuple[str, str]:
        """Status and detail for pickers, in less than two seconds."""
        ok, _, detail = self._diagnose()[-1]
        if ok:
            return "ready", ""
        return ("needs_setup" if self.is_available() else "unavailable"), detail

    def doctor_checks(self) -> list[tuple[bool, str, str]]:
        return self._diagnose()

    def setup_instructions(self) -> list[str]:
        return [
            "Commands run in DeepInfra sandboxes; the daemon deepinfra-sandboxd keeps them.",
            f"1. {INSTALL_HINT}",
            f"2. {KEY_HINT}",
            "3. hermes plugins enable deepinfra-sandbox",
            "4. hermes config set terminal.backend deepinfra",
            "5. hermes doctor",
        ]

    def post_setup(self) -> None:
        """Say at once what is still missing."""
        for ok, label, detail in self._diagnose():
            print(f"  {'ok' if ok else '!!'} {label}: {detail}")

    def _diagnose(self) -> list[tuple[bool, str, str]]:
        """Rows up to the first that is not well, each failure with the command that mends it."""
        rows = []
        try:
            with Client(self._setting("socket"), timeout=0.45) as client:
                hello = client.hello()
                rows.append((True, "deepinfra-sandboxd", f"(version {hello.version})"))
                own = api_key()
                if not hello.configured and own is None:
                    rows.append((False, "DeepInfra API key", f"the daemon has none: {KEY_HINT}"))
                elif own and hello.fingerprint not in (None, fingerprint(own)):
                    detail = f"{KEY_VARIABLE} is not the running daemon's key: use one key a user"
                    rows.append((False, "DeepInfra API key", detail))
                else:
                    rows.append((True, "DeepInfra API key", "(known)"))
        except DaemonNotRunning as error:
            installed = shutil.which("deepinfra-sandboxd") is not None
            detail = f"{error}: {START_HINT if installed else INSTALL_HINT}"
            rows.append((False, "deepinfra-sandboxd", detail))
        except SandboxdError as error:
            label = "deepinfra-sandboxd" + (" version" if isinstance(error, Incompatible) else "")
            rows.append((False, label, f"{error}: {error.hint}"))
        except Exception as error:  # such as no scope for secrets: a picker must not fail for it
            rows.append((False, "deepinfra-sandboxd", f"{type(error).__name__}: {error}"))
        return rows

    def _setting(self, name: str) -> str | None:
        value = self._get_config(name, None) if self._get_config is not None else None
        return str(value) if value else None

    def _shared_client(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(self._setting("socket"))
            return self._client


def register(ctx: Any) -> None:
    """hermes's entry: *ctx* is its plugin context."""
    provider = DeepInfraProvider(getattr(ctx, "get_config", None))
    ctx.register_terminal_environment_provider(provider)
    if (hook := getattr(ctx, "register_hook", None)) is not None:
        hook("on_session_finalize", provider.end_session)
