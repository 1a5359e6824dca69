"""The terminal environment: hermes's ``BaseEnvironment`` on a sandbox that the daemon owns.

An environment holds no sandbox, only its key: making one, using one after ``cleanup`` and using one
after the platform stopped the sandbox all go the same way, through ``sandbox.ensure`` before each
command. It may be used from many threads at once. Errors: creation raises
``EnvironmentConnectionError``; later, ``execute`` answers exit code 125 and says that it is no
failure of the command, since hermes repeats a command that raised.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import threading
import time
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tools import interrupt
from tools.environments.base import BaseEnvironment, EnvironmentConnectionError

from .client import Client
from .errors import ConnectionLost, RpcError, SandboxdError
from .process import LOOK, CommandHandle, infrastructure
from .rpc import Json

logger = logging.getLogger(__name__)

WORKSPACE = "/workspace"  # the only path that survives a stop of the sandbox
DAEMON_GRACE = 10  # seconds: hermes's own time-out comes first and is the one reported
NO_PREFERENCE = ("", "~", "/root")  # what hermes passes when nobody chose a directory


@dataclass
class _Call:
    """One ``execute``; its threads find it in a context variable, which hermes copies to its worker."""

    thread: int
    poller: bool
    handle: CommandHandle | None = None


_call: ContextVar[_Call | None] = ContextVar("deepinfra_sandboxd_call", default=None)


class _Interrupted(Exception):
    pass


def plain(text: str) -> str:
    """*text* without the word that makes hermes report an error as a command's time-out."""
    return text.replace("timeout", "time limit").replace("Timeout", "time limit")


def fingerprint(api_key: str) -> str:
    """The name under which the daemon shows a key."""
    return hashlib.sha256(b"deepinfra-sandboxd key v1\n" + api_key.encode()).hexdigest()[:16]


def _interrupted(threads: tuple[int, ...]) -> bool:
    """True when the user wants one of these threads back."""
    check = getattr(interrupt, "is_thread_interrupted", None)
    return any(map(check, threads)) if check is not None else bool(interrupt.is_interrupted())


def _wanted(threads: tuple[int, ...]) -> bool:
    """True when hermes's wait loop has to look: interrupted, or asked to hand the command over (newer
    versions only)."""
    to_yield = getattr(interrupt, "is_thread_yield_requested", None)
    return _interrupted(threads) or (to_yield is not None and any(map(to_yield, threads)))


def _survives(cwd: str) -> bool:
    """Whether a directory is there again after a stop; "/" always is."""
    return cwd == "/" or cwd == WORKSPACE or cwd.startswith(WORKSPACE + "/")


class DeepInfraEnvironment(BaseEnvironment):
    """The environment of one key ``(profile, task)``; made by the provider, which owns the client."""

    _stdin_mode = "pipe"

    def __init__(
        self,
        client: Client,
        key: tuple[str, str],
        *,
        cwd: str,
        timeout: int,
        persistent: bool = True,
        plan: str | None = None,
        api_key: str | None = None,
    ) -> None:
        super().__init__(cwd=WORKSPACE if cwd in NO_PREFERENCE else cwd, timeout=timeout)
        self.key = key
        self._persistent = persistent
        # An ephemeral sandbox lives as long as its session, not as its turn.
        self._session_scoped = not persistent
        self._client, self._plan, self._api_key = client, plan, api_key
        self._refresh = threading.Lock()
        self._seen_cwds: set[str] = set()  # observed since the last restart
        self._stale_cwds: set[str] = set()  # observed before it, outside /workspace
        try:
            self._boot = self._ensure()  # which start of which sandbox the session was made in
        except SandboxdError as error:
            raise EnvironmentConnectionError(
                plain(str(error)), retry_hint=plain(error.hint)
            ) from error
        except _Interrupted:
            raise EnvironmentConnectionError(
                "interrupted while the sandbox was being made"
            ) from None
        self.init_session()

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: int | None = None,
        stdin_data: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """As hermes defines it; *options* are passed on as they come."""
        poller = threading.current_thread().name.startswith("proc-poller-")
        call = _Call(threading.get_ident(), poller)
        token = _call.set(call)
        try:
            recreated = False
            try:
                if poller:
                    if (answer := self._poll_answer(command)) is not None:
                        return answer
                else:
                    recreated = self._enter(self._ensure())
            except SandboxdError as error:
                text = "" if poller else infrastructure(f"{error}; nothing was run", error.hint)
                return {"output": text, "returncode": 125}
            except _Interrupted:
                return {"output": "[Command interrupted before it started]", "returncode": 130}
            if recreated:
                self._mark_recreated()
            if cwd in NO_PREFERENCE[1:] or cwd in self._stale_cwds:
                cwd = WORKSPACE
            call.handle = None  # the one of the session's snapshot, if that was made again
            try:
                result: dict[str, Any] = super().execute(
                    command, cwd, timeout=timeout, stdin_data=stdin_data, **options
                )
            except Exception as error:
                if call.handle is None:
                    raise  # nothing was started: hermes may try again
                logger.exception("deepinfra-sandbox: hermes's wait failed")
                text = infrastructure(f"{type(error).__name__}: {error}; the outcome is unknown")
                result = {"output": plain(text), "returncode": 125}
            return self._complete(result, call, recreated)
        finally:
            _call.reset(token)

    def cleanup(self, force_remove: bool | None = None) -> None:
        """Let go of the sandbox, which lives on by the daemon's clock; only ``force_remove=True``, an
        explicit removal, terminates it, unless others hold it. Never raises; ``execute`` works after it.
        """
        mode = "terminate" if force_remove else "keep"
        params = {"key": self._key_value(), "mode": mode}
        try:
            if mode == "keep":
                self._client.post("sandbox.release", params)
            else:
                self._client.call("sandbox.release", params, timeout=30)
        except SandboxdError as error:
            logger.warning("deepinfra-sandbox: could not terminate the sandbox: %s", error)

    def __del__(self) -> None:
        """Nothing: garbage collection may run anywhere, also while the client's lock is held."""

    def wait_for_cleanup(self, timeout: float | None = None) -> bool:
        return True

    def _run_bash(
        self,
        cmd_string: str,
        *,
        login: bool = False,
        timeout: int = 120,
        stdin_data: str | None = None,
    ) -> CommandHandle:
        call = _call.get() or _Call(threading.get_ident(), poller=False)
        threads = (threading.get_ident(), call.thread)
        handle = CommandHandle(
            lambda: self._client.prepare(
                script=cmd_string,
                login=login,
                key=self.key,
                timeout=timeout + DAEMON_GRACE,
                input=stdin_data,
                env=self.env,
                merge_output=True,
                persistent=self._persistent,
                plan=self._plan,
            ),
            limit=timeout,
            interrupted=lambda: _wanted(threads),
            quiet=call.poller,
        )
        call.handle = handle
        return handle

    def _key_value(self) -> dict[str, str]:
        return {"profile": self.key[0], "task": self.key[1]}

    def _ensure(self) -> tuple[str, int]:
        """Have the sandbox running, honouring interrupts; its id and the number of its start."""
        try:
            return self._ask_for_sandbox()
        except ConnectionLost:  # a daemon that was restarted is noticed here; asking twice is safe
            return self._ask_for_sandbox()

    def _ask_for_sandbox(self) -> tuple[str, int]:
        self._use_account()
        params: Json = {"key": self._key_value(), "persistent": self._persistent}
        if self._plan:
            params["plan"] = self._plan
        answer = self._wait(self._client.submit("sandbox.ensure", params))
        return str(answer["sandbox"]["id"]), int(answer["generation"])

    def _use_account(self) -> None:
        """Refuse a daemon with another API key than this profile's; give ours to one with none."""
        hello = self._client.hello()
        if self._api_key is None:
            return
        if not hello.configured:
            self._client.set_account(self._api_key)
        elif hello.fingerprint and hello.fingerprint != (own := fingerprint(self._api_key)):
            raise RpcError(
                f"account_mismatch: DEEPINFRA_API_KEY (fingerprint {own}) is not the key of the"
                f" running daemon ({hello.fingerprint})",
                name="account_mismatch",
                code=2003,
                retryable=False,
                hint="use one API key a user, or a daemon of its own with DEEPINFRA_SANDBOXD_SOCKET",
                sandbox_id=None,
            )

    def _wait(self, future: Future[Json]) -> Json:
        call, me = _call.get(), threading.get_ident()
        threads = (me,) if call is None else (me, call.thread)
        # hermes's own helper tells the gateway that a long wait is alive; absent, nothing is told.
        touch = getattr(sys.modules[BaseEnvironment.__module__], "touch_activity_if_due", None)
        state = dict.fromkeys(("last_touch", "start"), time.monotonic())
        while True:
            try:
                return future.result(LOOK)
            except TimeoutError:
                if _interrupted(threads):
                    raise _Interrupted from None
                if touch is not None:
                    progress = self._client.progress.get(self.key, "")
                    touch(state, f"waiting for the sandbox {progress}".rstrip())

    def _poll_answer(self, command: str) -> dict[str, Any] | None:
        """For a poll of a background process: the answer when asking the sandbox would start it.

        None when it runs and can be asked. A stopped sandbox has no processes; of any other state
        nothing is known, and empty output keeps hermes polling.
        """
        try:
            state = self._client.call("sandbox.get", {"key": self._key_value()})["sandbox"]["state"]
        except RpcError as error:
            if error.name not in ("sandbox_not_found", "sandbox_gone"):
                raise
            state = "absent"
        if state == "running":
            return None
        gone = state in ("stopped", "absent", "failed") and "kill -0" in command
        return {"output": "1\n" if gone else "", "returncode": 1}

    def _enter(self, boot: tuple[str, int]) -> bool:
        """After a restart of the sandbox make its session again; True when this call did."""
        with self._refresh:
            if boot == self._boot:
                return False
            self._boot = boot
            self._stale_cwds |= {cwd for cwd in set(self._seen_cwds) if not _survives(cwd)}
            self._seen_cwds.clear()
            if not _survives(self.cwd):
                self.cwd = WORKSPACE
            self.init_session()
            return True

    def _complete(self, result: dict[str, Any], call: _Call, recreated: bool) -> dict[str, Any]:
        end = call.handle.end if call.handle is not None else None
        if result.get("returncode") is None:
            result["returncode"] = 125  # hermes reads None as success
        if call.poller and (end is None or end.reason != "exited"):
            result["output"] = ""  # hermes takes any other text for the end of the process
        if result.get("cwd_observed"):
            self._seen_cwds.add(result["cwd"])
            self._stale_cwds.discard(result["cwd"])
        if end is not None and end.recreated and not call.poller:
            recreated = True
            with contextlib.suppress(SandboxdError, _Interrupted):  # else the next command does it
                self._enter(self._ensure())
        if recreated:
            result["environment_recreated"] = True
        return result
