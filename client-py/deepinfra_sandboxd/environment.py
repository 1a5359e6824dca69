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
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Iterable

from tools import interrupt
from tools.environments import base
from tools.environments.base import BaseEnvironment, EnvironmentConnectionError

from .client import Client, key_value
from .errors import UPGRADE_HINT, RpcError, SandboxdError
from .execution import bytes_value
from .process import CommandHandle, infrastructure
from .rpc import Json, Tick

logger = logging.getLogger(__name__)

WORKSPACE = "/workspace"  # the only path that survives a stop of the sandbox
CACHE_BASE = "/workspace/.hermes"  # what hermes synchronises lies here
MAX_PULL = 2 << 30  # bytes; hermes applies no more
BATCH = 2000  # files in one request: they fit in a line
DAEMON_GRACE = 10  # seconds: hermes's own time-out comes first and is the one reported
NO_PREFERENCE = ("", "~", "/root")  # what hermes passes when nobody chose a directory


@dataclass
class _Call:
    """One ``execute``; its threads find it in a context variable, which hermes copies to its worker.

    *quiet*: it is asked for by a poller of background processes, or while the interpreter ends. Then
    no sandbox is started, and what is no word of the command's own has empty output."""

    thread: int
    quiet: bool
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


def _asked(threads: Iterable[int], *, to_yield: bool) -> bool:
    """True when the user wants one of these threads back, or (newer hermes) its command handed over."""
    names = ("is_thread_interrupted", "is_thread_yield_requested")[: 1 + to_yield]
    checks = [check for name in names if (check := getattr(interrupt, name, None))]
    return any(check(thread) for check in checks for thread in threads) or bool(interrupt.is_interrupted())


def _survives(cwd: str) -> bool:
    """Whether a directory is there again after a stop; "/" always is."""
    return cwd == "/" or f"{cwd}/".startswith(WORKSPACE + "/")


class DeepInfraEnvironment(BaseEnvironment):
    """The environment of one key ``(profile, task)``; made by the provider, which owns the client.

    *signal* is what an interrupt sends to the command: KILL, TERM or INT.
    """

    _stdin_mode = "pipe"
    _sudo_nopasswd_probe_supported = True  # a cancelled command takes nothing else with it

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
        signal: str = "KILL",
    ) -> None:
        super().__init__(cwd=WORKSPACE if cwd in NO_PREFERENCE else cwd, timeout=timeout)
        self.key = key
        self._persistent = persistent
        # An ephemeral sandbox lives as long as its session, not as its turn.
        self._session_scoped = not persistent
        self._client, self._api_key, self._signal = client, api_key, signal
        self._named: Json = {"key": key_value(key)}
        self._wanted: Json = {"persistent": persistent} | ({"plan": plan} if plan else {})
        self._refresh, self._syncing = threading.Lock(), threading.Lock()
        self._seen_cwds: set[str] = set()  # observed since the last restart
        self._stale_cwds: set[str] = set()  # observed before it, outside /workspace
        try:
            self._boot = self._ensure()  # which start of which sandbox the session was made in
        except SandboxdError as error:
            raise EnvironmentConnectionError(plain(str(error)), retry_hint=plain(error.hint)) from error
        except _Interrupted:
            raise EnvironmentConnectionError("interrupted while the sandbox was being made") from None
        self._begin_session()

    def execute(
        self, command: str, cwd: str = "", *, timeout: int | None = None, stdin_data: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """As hermes defines it; *options* are passed on as they come."""
        thread = threading.current_thread()
        quiet = thread.name.startswith("proc-poller-") or not threading.main_thread().is_alive()
        call = _Call(threading.get_ident(), quiet)
        token = _call.set(call)
        try:
            recreated = False
            try:
                if not quiet:
                    recreated = self._enter(self._ensure())
                elif (answer := self._poll_answer(command)) is not None:
                    return answer
            except SandboxdError as error:
                text = infrastructure(f"{error}; nothing was run", error.hint)
                return {"output": "" if quiet else plain(text), "returncode": 125}
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
                if call.handle is None and not quiet:
                    raise  # nothing was started: hermes may try again
                logger.exception("deepinfra-sandbox: hermes's wait failed")
                text = infrastructure(f"{type(error).__name__}: {error}; the outcome is unknown")
                result = {"output": plain(text), "returncode": 125}
            return self._complete(result, call, recreated)
        finally:
            _call.reset(token)

    def _before_execute(self) -> None:
        """hermes's hook in front of each command, in its own thread."""
        call = _call.get()
        if call is not None and not call.quiet and self._syncing.acquire(blocking=False):
            try:
                if self._files is not None:
                    self._files.sync()
            finally:
                self._syncing.release()

    def cleanup(self, force_remove: bool | None = None) -> None:
        """Let go of the sandbox, which lives on by the daemon's clock; only ``force_remove=True``, an
        explicit removal, terminates it, unless others hold it. What changed in the synchronised files
        is fetched first if the sandbox runs. Never raises; ``execute`` works after it.
        """
        try:
            if self._files is not None and self._client.alive and self._state() == "running":
                with self._syncing:
                    self._files.sync_back()
            if not force_remove:
                if self._persistent:  # one that is of this process alone would end with its release
                    self._client.post("sandbox.release", self._named | {"mode": "keep"})
            else:
                self._client.call("sandbox.release", self._named | {"mode": "terminate"}, timeout=30)
        except Exception as error:
            logger.warning("deepinfra-sandbox: cleaning up: %s", error)

    def __del__(self) -> None:
        """Nothing: garbage collection may run anywhere, also while the client's lock is held."""

    def wait_for_cleanup(self, timeout: float | None = None) -> bool:
        return True

    def fetch_file(self, remote_path: str, local_dest: Path, *, max_bytes: int) -> None:
        """Copy a regular file out, whatever its bytes; raises hermes's error for that, and then
        *local_dest* is not there."""
        error = getattr(base, "FileFetchError", RuntimeError)
        script = '[ -f "$1" ] || { echo "no regular file" >&2; exit 1; }; exec head -c "$2" -- "$1"'
        argv = ["sh", "-c", script, "sh", remote_path, str(max_bytes + 1)]
        partial_file = Path(f"{local_dest}.{threading.get_ident()}.part")
        try:
            problem, size = b"", 0
            with open(partial_file, "wb") as file, self._start(argv) as running:
                for chunk in running:
                    if chunk.stream == "stderr":
                        problem = chunk.data
                    else:
                        size += file.write(chunk.data)
            if (end := running.end) is None or end.returncode != 0:
                text = problem.decode(errors="replace").strip() or (end.message if end else "")
                raise error(f"could not read {remote_path!r} in the sandbox: {text}")
            if size > max_bytes:
                raise error(f"{remote_path!r} exceeds the limit of {max_bytes} bytes")
            partial_file.replace(local_dest)
        except SandboxdError as failure:
            raise error(plain(infrastructure(str(failure), failure.hint))) from failure
        finally:
            partial_file.unlink(missing_ok=True)

    def fetch_realpath(self, remote_path: str) -> str | None:
        """The path with all links resolved in the sandbox, or None."""
        try:
            with self._start(["readlink", "-f", "--", remote_path]) as running:
                done = running.wait()
        except SandboxdError:
            return None
        path = done.stdout.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        return path if done.returncode == 0 and path.startswith("/") else None

    def _start(self, argv: list[str]) -> Any:
        self._ensure()
        return self._client.start(argv, key=self.key, cwd=self.cwd, timeout=300, **self._wanted)

    def _run_bash(
        self, cmd_string: str, *, login: bool = False, timeout: int = 120, stdin_data: str | None = None
    ) -> CommandHandle:
        call = _call.get() or _Call(threading.get_ident(), quiet=False)
        prepare = partial(
            self._client.prepare,
            script=cmd_string,
            login=login,
            key=self.key,
            timeout=timeout + DAEMON_GRACE,
            input=stdin_data,
            env=self.env,
            merge_output=True,
            **self._wanted,
        )
        wanted_back = partial(_asked, (threading.get_ident(), call.thread), to_yield=True)
        call.handle = CommandHandle(
            prepare, limit=timeout, interrupted=wanted_back, signal=self._signal, quiet=call.quiet
        )
        return call.handle

    def _tick(self) -> Tick:
        """What a wait outside hermes's clock does meanwhile: it ends at an interrupt, and shows life."""
        call, me = _call.get(), threading.get_ident()
        threads = (me,) if call is None else (me, call.thread)
        # hermes's own helper tells the gateway that a long wait is alive; absent, nothing is told.
        touch = getattr(base, "touch_activity_if_due", None)
        state = dict.fromkeys(("last_touch", "start"), time.monotonic())

        def tick() -> None:
            if _asked(threads, to_yield=False):
                raise _Interrupted
            if touch is not None:
                touch(state, f"waiting for the sandbox {self._client.progress.get(self.key, '')}".rstrip())

        return tick

    def _ensure(self) -> tuple[str, int]:
        """Have the sandbox running, honouring interrupts; its id and the number of its start."""
        tick = self._tick()
        self._use_account(tick)
        answer = self._client.call("sandbox.ensure", self._named | self._wanted, tick=tick)
        return str(answer["sandbox"]["id"]), int(answer["generation"])

    def _use_account(self, tick: Tick) -> None:
        """Refuse a daemon with another API key than this profile's; give ours to one with none."""
        hello = self._client.connected(tick).hello
        if self._api_key is None:
            return
        if not hello.configured:
            self._client.set_account(self._api_key)
        elif hello.fingerprint and hello.fingerprint != (own := fingerprint(self._api_key)):
            text = (
                f"account_mismatch: DEEPINFRA_API_KEY (fingerprint {own}) is not the key of the"
                f" running daemon ({hello.fingerprint})"
            )
            hint = "use one API key a user, or a daemon of its own with DEEPINFRA_SANDBOXD_SOCKET"
            raise RpcError({"message": text, "code": 2003, "data": {"name": "account_mismatch", "hint": hint}})

    def _state(self) -> str:
        try:
            return str(self._client.call("sandbox.get", self._named, timeout=5)["sandbox"]["state"])
        except RpcError as error:
            if error.name not in ("sandbox_not_found", "sandbox_gone"):
                raise
            return "absent"

    def _poll_answer(self, command: str) -> dict[str, Any] | None:
        """For a poll of a background process: the answer when asking the sandbox would start it.

        None when it runs and can be asked. A stopped sandbox has no processes; of any other state
        nothing is known, and empty output keeps hermes polling.
        """
        if not threading.main_thread().is_alive() and not self._client.alive:
            raise SandboxdError("the interpreter ends, and there is no connection")  # none is made any more
        state = self._state()
        if state == "running":
            return None
        gone = state in ("stopped", "absent", "failed") and "kill -0" in command
        return {"output": "1\n" if gone else "", "returncode": 1}

    def _begin_session(self) -> None:
        """What the beginning of a session and that after a restart of the sandbox share."""
        self._files = self._synchroniser()
        if self._files is not None:
            self._files.sync(force=True)
        self.init_session()

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
            self._begin_session()
            return True

    def _complete(self, result: dict[str, Any], call: _Call, recreated: bool) -> dict[str, Any]:
        end = call.handle.end if call.handle is not None else None
        if result.get("returncode") is None:
            result["returncode"] = 125  # hermes reads None as success
        if call.quiet and (end is None or end.reason != "exited"):
            result["output"] = ""  # hermes takes any other text for the end of the process
        if result.get("cwd_observed"):
            self._seen_cwds.add(result["cwd"])
            self._stale_cwds.discard(result["cwd"])
        if end is not None and end.recreated and not call.quiet:
            recreated = True
            with contextlib.suppress(SandboxdError, _Interrupted):  # else the next command does it
                self._enter(self._ensure())
        if recreated:
            result["environment_recreated"] = True
        return result

    # -- files: hermes decides what, the daemon carries

    def _synchroniser(self) -> Any:
        """hermes's manager of the files it wants in the sandbox, or None where it or the daemon has none.

        What a sandbox has is remembered by the daemon: a new manager's full upload costs nothing."""
        try:
            from tools.environments.file_sync import FileSyncManager, iter_sync_files
        except ImportError:
            return None
        hello = self._client.hello()
        if "fs" not in hello.capabilities:
            logger.warning("deepinfra-sandboxd %s does not synchronise files: %s", hello.version, UPGRADE_HINT)
            return None
        return FileSyncManager(
            get_files_fn=partial(iter_sync_files, CACHE_BASE),
            upload_fn=lambda host, remote: self._push([(host, remote)]),
            delete_fn=self._delete,
            bulk_upload_fn=self._push,
            bulk_download_fn=self._pull,
        )

    def _push(self, files: list[tuple[str, str]]) -> None:
        pairs = [{"host": bytes_value(host), "remote": bytes_value(remote)} for host, remote in files]
        self._in_batches("fs.push", "files", pairs, self._wanted, "skipped")

    def _delete(self, remotes: list[str]) -> None:
        self._in_batches("fs.delete", "remotes", [bytes_value(remote) for remote in remotes], {}, "failed")

    def _in_batches(self, method: str, name: str, items: list[Any], more: Json, failures: str) -> None:
        for begin in range(0, len(items), BATCH):
            params = self._named | more | {name: items[begin : begin + BATCH]}
            for one in self._client.call(method, params, tick=self._tick()).get(failures, ()):
                text = one.get("text") or one.get("reason")
                raise SandboxdError(f"{method}: {one.get('host', '')} {one['remote']}: {text}")

    def _pull(self, destination: Path) -> None:
        params = {"remote": CACHE_BASE, "host": bytes_value(str(destination)), "max_bytes": MAX_PULL}
        self._client.call("fs.pull", self._named | params)
