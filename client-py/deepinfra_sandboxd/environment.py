"""The terminal environment: hermes's ``BaseEnvironment`` on a sandbox that the daemon owns.

An environment holds no sandbox, only its key: making one, using one after ``cleanup`` and using one
after the platform stopped the sandbox all go the same way, through ``sandbox.ensure`` before each
command. It may be used from many threads at once. Errors: creation raises
``EnvironmentConnectionError``; ``execute`` raises it only where nothing was run and the caller does not
repeat a command that raised, and else answers exit code 125 and says that it is no failure of the command.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import logging
import os
import re
import shlex
import tarfile
import tempfile
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, TypeVar

from hermes_constants import get_hermes_home
from tools import interrupt
from tools.environments import base, file_sync
from tools.environments.base import BaseEnvironment, EnvironmentConnectionError

from . import daemon
from .client import Client, forked, key_value
from .errors import ConnectionLost, NoAnswer, RpcError, SandboxdError
from .execution import Chunk, CompletedExec, bytes_value
from .process import CommandHandle, infrastructure
from .rpc import LOOK, Json, Tick, encoded_size, no_tick

logger = logging.getLogger(__name__)

WORKSPACE = "/workspace"  # the only path that survives a stop of the sandbox
CACHE_BASE = "/workspace/.hermes"  # what hermes synchronises lies here
WAY_BACK = CACHE_BASE + "/cache"  # and of that what a sandbox may change on the host
MAX_PULL, PULL_TIME = 2 << 30, 30.0  # bytes that hermes applies, and seconds, unless it says otherwise
# Errors that another try does not help against: hermes would make two, after 2 and 4 s.
NOTHING_TO_PULL = ("generation_changed", "sandbox_gone", "sandbox_not_found", "file_not_found", "too_large")
BATCH, BATCH_BYTES = 2000, 1 << 19  # files in one request, and bytes of its line
DAEMON_GRACE = 10  # seconds: hermes's own time-out comes first and is the one reported
NO_PREFERENCE = ("", "~", "/root")  # what hermes passes when nobody chose a directory
# What hermes runs, also when a session is over, to be rid of processes and directories that it began itself.
OWN_DIRECTORY = r"/tmp/hermes_(rkernel|exec)_\w+"
TEARDOWN = re.compile(rf"((pkill -TERM -P|kill) \d+ 2>/dev/null(; |$))+(true)?|rm -rf {OWN_DIRECTORY}")
RESTARTS = 4  # of the sandbox, that one command may meet before it runs
SETTINGS_AGE = 1.0  # seconds for which settings count that were read: hermes may read its configuration for each
LOGIN_PAUSE = 300.0  # seconds until a login shell that did not work is tried again
SYNC_GRACE = 5.0  # seconds that the end waits for files that are still being sent, a removal for the daemon as well
SILENCE = 300.0  # seconds without a byte after which a fetch is given up
OTHER_KEY_HINT = (
    f"hermes config set {daemon.KEY_VARIABLE} <the daemon's key>; or, for a daemon of this key's own, set"
    f" {daemon.SOCKET_VARIABLE} and {daemon.STATE_VARIABLE} for hermes and: deepinfra-sandboxd serve &"
)
Boot = tuple[str, int]  # a start of a sandbox: whose, and its number
T = TypeVar("T")


@dataclass
class _Call:
    """One ``execute``; its threads find it in a context variable, which hermes copies to its worker.

    *quiet*: it is asked for by a poller of background processes, while the interpreter ends, or it is a
    *teardown*. Then no sandbox is started, and what is no word of the command's own has empty output.
    *boot* is the start of the sandbox that its commands may run in: in any other they would find neither
    snapshot nor directory. The daemon refuses them then, before anything has run. *cwd* is where the
    caller sent the command. *to_yield*: somebody may take it over when the user asks for that, and if so has
    *yielded* it. *raising*: that nothing was run is told by an exception, see ``execute``. *handles*: of what
    hermes ran for it since that was last asked, its own probes before the command."""

    thread: int
    quiet: bool
    teardown: bool = False
    raising: bool = False
    cwd: str = ""
    to_yield: bool = False
    yielded: bool = False
    boot: Boot | None = None
    handles: list[CommandHandle] = field(default_factory=list)
    prelude: str = ""  # what each of its scripts does first
    ended: int = 0  # sessions of its key that had, when it began

    def hand_over(self, taken_by: Callable[..., Any], *handle_and_output: Any) -> Any:
        taken = taken_by(*handle_and_output)
        self.yielded = taken is not None  # else hermes waits on
        return taken

    @property
    def end(self) -> CompletedExec | None:
        """How the command ended; None when it was killed, or there was none."""
        return self.handles[-1].end if self.handles else None

    @property
    def refused(self) -> bool:
        """Whether that start of the sandbox did not run any more."""
        return self.end is not None and self.end.error == "generation_changed"

    @property
    def unauthorized(self) -> bool:
        """Whether the daemon's API key was refused, and nothing run."""
        return self.end is not None and (self.end.error, self.end.started) == ("unauthorized", "no")


@dataclass
class _Known:
    """What outlives an environment: hermes drops one that is idle, but not where each of its sessions is."""

    boot: Boot | None = None  # the last one that a session was made in
    ended: int = 0  # how many sessions have, of which each takes its sandbox along
    cwds: dict[str, Boot] = field(default_factory=dict)  # the start that each directory was last seen in

    def is_stale(self, cwd: str, boot: Boot | None) -> bool:
        """Whether it was there before a restart or a removal, and went with that."""
        return not _survives(cwd, self.cwds.get(cwd, boot), boot)


_call: ContextVar[_Call | None] = ContextVar("deepinfra_sandboxd_call", default=None)


class _Interrupted(SandboxdError):
    """The user wants the thread back."""


def plain(text: str) -> str:
    """*text* without the word that makes hermes report an error as a command's time-out."""
    return re.sub("timeout", "time limit", text, flags=re.IGNORECASE)


def _is_quiet() -> bool:
    """Whether this thread must not start a sandbox: see ``_Call``."""
    return threading.current_thread().name.startswith("proc-poller-") or not threading.main_thread().is_alive()


def profile_home() -> str:
    """The real path of the hermes home. Any error propagates: one that was guessed is worse than none."""
    return os.path.realpath(get_hermes_home(), strict=True)


def profile_identity(home: str) -> str:
    """What tells the sandboxes of the profile at *home* from all others: that path, but for the native home
    ``~/.hermes``, which is "default", as the daemon's command line calls it; no path can be mistaken for that."""
    return "default" if home == os.path.realpath(os.path.join(daemon.home_dir(), ".hermes")) else home


def fingerprint(api_key: str) -> str:
    """The name under which the daemon shows a key."""
    return hashlib.sha256(b"deepinfra-sandboxd key v1\n" + api_key.encode()).hexdigest()[:16]


def _asked(threads: Iterable[int], *, to_yield: bool) -> bool:
    """True when the user wants one of these threads back, or (newer hermes) its command handed over."""
    names = ("is_thread_interrupted", "is_thread_yield_requested")[: 1 + to_yield]
    checks = [check for name in names if (check := getattr(interrupt, name, None))]
    return any(check(thread) for check in checks for thread in threads) or bool(interrupt.is_interrupted())


@cache
def can_unpack() -> bool:
    """Whether hermes can unpack on this Python what comes back; said once if not."""
    able = hasattr(tarfile, "data_filter")
    if not able:
        logger.warning("deepinfra-sandbox: files that sandboxes change come back with Python 3.11.4 or later only")
    return able


def _pull_limit(name: str, usual: float) -> float:
    """One of hermes's limits for what it takes back."""
    with contextlib.suppress(Exception):  # it is hermes's own, and its configuration may be anything
        return max(0.0, float(getattr(file_sync, name)()))
    return usual


def _survives(cwd: str, seen: Boot | None, boot: Boot | None) -> bool:
    """Whether a directory of the start *seen* is there in *boot*: a stop spares /workspace, a removal nothing in it."""
    same_sandbox = seen is not None and boot is not None and seen[0] == boot[0]
    return seen == boot or cwd in ("/", WORKSPACE) or (same_sandbox and cwd.startswith(WORKSPACE + "/"))


class DeepInfraEnvironment(BaseEnvironment):
    """The environment of one key ``(profile, task)``; made by the provider, which owns the client.

    *signal* is what an interrupt sends to the command: KILL, TERM or INT. *settings* tells the plan of a new sandbox
    and after how many idle seconds it is stopped, 0 being the daemon's own time: asked again and again, as hermes keeps
    an environment for as long as it is used. *api_key* tells the key of the profile in scope; what it raises at
    creation comes out. *used* is told True each time before the sandbox is made or started or found running, and
    False when it is to be removed.
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
        settings: Callable[[], tuple[str | None, int]] = lambda: (None, 0),
        api_key: Callable[[], str | None] = lambda: None,
        signal: str = "KILL",
        used: Callable[[DeepInfraEnvironment, bool], None] = lambda *_: None,
    ) -> None:
        super().__init__(cwd=WORKSPACE if cwd in NO_PREFERENCE else cwd, timeout=timeout)
        self.key = key
        self._persistent = persistent
        # An ephemeral sandbox lives as long as its session, not as its turn.
        self._session_scoped = not persistent
        self._client, self._signal, self._used = client, signal, used
        self._read_key, self._api_key = api_key, api_key()
        self._settings, self._settings_due = settings, 0.0
        self._idle_stop: int | None = None  # the seconds that the daemon was told last
        self._scope = contextvars.copy_context()  # the profile's
        self._named: Json = {"key": key_value(key)}
        self._wanted: Json = {"persistent": persistent}
        self._known = _known.setdefault(key, _Known())
        self._home = self.cwd if self.cwd.startswith(WORKSPACE + "/") else WORKSPACE  # is made with each session
        self._boot: Boot | None = None  # the one that the session was made in
        self._login_again = 0.0  # when a login shell is to be tried after one that did not work, monotonic
        self._untold = False  # it is another one than before, and no result has said so
        self._files: Any = None
        self.after_fork()
        forked.add(self)
        try:
            with self._calling() as call:
                self._enter(call)
        except Exception as error:  # whatever it is, nothing has run yet
            text = plain(str(error) or repr(error))
            raise EnvironmentConnectionError(text, retry_hint=plain(getattr(error, "hint", ""))) from error

    def after_fork(self) -> None:
        """Make the locks anew, hermes's too: one at a time makes the session again; one compares the files."""
        self._refresh, self._syncing = threading.Lock(), threading.Lock()
        self._files = self._files and self._synchroniser()

    def _scoped(self, work: Callable[[], T]) -> T:
        """Do *work* with our profile in scope, by which hermes finds its files. Its own threads, and ours, have the one
        that the process began with; where it is in scope, so is what else the session has."""
        own = False
        with contextlib.suppress(Exception):  # such as of a home that is not there any more
            own = profile_identity(profile_home()) == self.key[0]
        if own:
            return work()
        scope = self._scope.copy()
        scope.run(_call.set, _call.get())
        return scope.run(work)

    @contextlib.contextmanager
    def _calling(self, command: str = "") -> Iterator[_Call]:
        teardown = TEARDOWN.fullmatch(command) is not None
        call = _Call(threading.get_ident(), teardown or _is_quiet(), teardown, ended=self._known.ended)
        token = _call.set(call)
        try:
            yield call
        finally:
            _call.reset(token)

    def execute(
        self, command: str, cwd: str = "", *, timeout: int | None = None, stdin_data: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """As hermes defines it; *options* are passed on as they come.

        Where nothing was run: hermes's terminal tool would repeat a command that raised, so it gets a
        result; of its tools it alone bounds what it captures. All others may take a result for the answer to
        their question, such as whether a file is there: they get ``EnvironmentConnectionError``.
        """
        options |= {"timeout": timeout, "stdin_data": stdin_data}
        with self._calling(command) as call:
            call.raising = not call.quiet and not options.get("bounded_capture")
            if options.get("yield_handler") is not None:
                call.to_yield, options["yield_handler"] = True, partial(call.hand_over, options["yield_handler"])
            try:
                return self._execute(call, command, cwd, options)
            except _Interrupted:
                return {"output": "[Command interrupted before it started]", "returncode": 130}
            except Exception as error:  # whatever it is, nothing was run
                text = plain(infrastructure(f"{error}; nothing was run", getattr(error, "hint", "")))
                if call.quiet:
                    logger.warning("deepinfra-sandbox: polling: %s", error)
                elif not isinstance(error, SandboxdError):
                    raise  # hermes may try again
                elif call.raising:
                    raise EnvironmentConnectionError(text, retry_hint=plain(error.hint)) from error
                return {"output": "" if call.quiet else text, "returncode": 125}

    def _execute(self, call: _Call, command: str, cwd: str, options: dict[str, Any]) -> dict[str, Any]:
        result = Json()
        for _ in range(RESTARTS):
            key = self._api_key
            if not call.quiet:
                self._enter(call)
            elif (answer := self._poll_answer(call, command)) is not None:
                return answer
            # /root may mean that nobody chose, or that a session went there. Once one was seen to, it is taken at
            # its word: at worst another session begins there, and is shown that. Otherwise what the first
            # meant for its home would be done to /workspace, unseen.
            nowhere = cwd in NO_PREFERENCE[1:] and self._known.cwds.get(cwd) != call.boot
            if stale := self._known.is_stale(cwd or self.cwd, call.boot):
                stale = self._run_own(["test", "-d", cwd or self.cwd], lambda chunk: None).returncode != 0
            call.cwd = WORKSPACE if nowhere or stale else cwd
            call.handles.clear()  # those of the session's snapshot, if that was made again
            try:
                result = super().execute(command, call.cwd, **options)
            except Exception as error:
                if not call.handles:
                    raise
                logger.exception("deepinfra-sandbox: hermes's wait failed")
                text = infrastructure(f"{type(error).__name__}: {error}; the outcome is unknown")
                result = {"output": plain(text), "returncode": 125}
            if call.quiet or not (call.refused or (call.unauthorized and self._has_new_key(key, self._tick()))):
                break
        if call.raising and (end := call.end) is not None and (end.reason, end.started) == ("failed", "no"):
            raise SandboxdError(end.message, hint=end.hint)
        return result if call.yielded else self._complete(result, call)

    def _update_cwd(self, result: dict[str, Any]) -> None:
        """hermes's: notes where a command ended, for commands that are not sent anywhere, such as background
        jobs. One that stayed where it was sent has not moved the session, nor has a script of hermes's own."""
        before, call = self.cwd, _call.get()
        super()._update_cwd(result)
        if call is not None and (self.cwd == call.cwd or re.fullmatch(OWN_DIRECTORY, self.cwd)):
            self.cwd = before

    def _before_execute(self) -> None:
        """hermes's hook in front of each command, in its own thread."""
        call = _call.get()
        if call is not None and not call.quiet and self._syncing.acquire(blocking=False):
            try:
                self._scoped(self._files.sync)
            finally:
                self._syncing.release()

    def cleanup(self, force_remove: bool | None = None) -> None:
        """Let go of the sandbox, which lives on by the daemon's clock; only ``force_remove=True``, an
        explicit removal, terminates it, unless others hold it. What changed in the synchronised files
        is fetched first if the sandbox runs, and for that no daemon is looked for, but for a moment where all goes with
        the sandbox. Never raises; ``execute`` works after it.
        """
        try:
            tick = self._patience(SYNC_GRACE) if force_remove else self._still_connected
            if self._files and (force_remove or self._client.alive) and self._look(tick)[0] == "running":
                with self._alone(self._patience(SYNC_GRACE)):
                    self._scoped(self._files.sync_back)
        except Exception as error:
            logger.warning("deepinfra-sandbox: fetching changed files at the end: %s", error)
        try:
            if force_remove:
                self._used(self, False)
                self._client.call("sandbox.release", self._named | {"mode": "terminate"}, timeout=30)
            elif self._persistent:  # one that is of this process alone would end with its release
                self._client.post("sandbox.release", self._named | {"mode": "keep"})
        except Exception as error:
            logger.warning("deepinfra-sandbox: letting go of the sandbox: %s", error)

    def end_session(self) -> None:
        """Remove the sandbox without waiting for it, since hermes may ask from its event loop; who uses the
        key next waits for that.

        The interpreter's end waits for our thread, too; when it ends already it takes no more threads,
        and nobody is held up. A process that is killed leaves the sandbox to the daemon."""
        thread = threading.Thread(target=self._remove, name="deepinfra-sandboxd-end", daemon=False)
        _ending[self.key] = thread
        self._known.ended += 1
        try:
            if threading.main_thread().is_alive():
                return thread.start()
        except RuntimeError as error:
            logger.warning("deepinfra-sandbox: no thread to remove a sandbox on: %s", error)
        self._remove()

    def _remove(self) -> None:
        self.cleanup(force_remove=True)
        _known.pop(self.key, None)
        _ending.pop(self.key, None)

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
        problem = bytearray()
        try:
            with open(partial_file, "wb") as file:
                take = {"stdout": file.write, "stderr": problem.extend}
                end = self._run_own(argv, lambda chunk: take[chunk.stream](chunk.data))
                size = file.tell()
            if end.returncode != 0:
                text = problem.decode(errors="replace").strip() or end.message
                raise error(plain(f"could not read {remote_path!r} in the sandbox: {text}"))
            if size > max_bytes:
                raise error(f"{remote_path!r} exceeds the limit of {max_bytes} bytes")
            partial_file.replace(local_dest)
        except OSError as failure:
            raise error(f"could not write {local_dest}: {failure}") from failure
        except SandboxdError as failure:
            raise error(plain(infrastructure(str(failure), failure.hint))) from failure
        finally:
            with contextlib.suppress(OSError):
                partial_file.unlink()

    def fetch_realpath(self, remote_path: str) -> str | None:
        """The path with all links resolved in the sandbox, or None."""
        output = bytearray()
        try:
            end = self._run_own(["readlink", "-f", "--", remote_path], lambda chunk: output.extend(chunk.data))
        except SandboxdError:
            return None
        path = output.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        return path if end.returncode == 0 and path.startswith("/") else None

    def _run_own(self, argv: list[str], take: Callable[[Chunk], object]) -> CompletedExec:
        """Run a command of our own, honouring interrupts, for as long as it goes on to print; its end.

        Raises ``SandboxdError``, and whatever *take* raises, which gets the output."""
        # Asked for on a poller's thread, it runs only where nothing has to be started for it.
        only, tick = self._boot[1] if _is_quiet() and self._boot else None, self._tick()
        if only is None:
            self._ensure(tick)
        with self._client.prepare(argv, key=self.key, cwd=self.cwd, generation=only, **self._wanted) as running:
            running.send(tick)
            heard = time.monotonic()
            while not running.finished:
                if (chunk := running.read(LOOK)) is not None:
                    take(chunk)
                    heard = time.monotonic()
                elif time.monotonic() > heard + SILENCE:
                    raise SandboxdError(f"nothing came from the sandbox for {SILENCE:.0f} s")
                tick()
            assert running.end is not None
            return running.end

    def _run_bash(
        self, cmd_string: str, *, login: bool = False, timeout: int = 120, stdin_data: str | None = None
    ) -> CommandHandle:
        call = _call.get() or _Call(threading.get_ident(), quiet=False)
        prepare = partial(
            self._client.prepare,
            script=call.prelude + cmd_string,
            login=login,
            key=self.key,
            timeout=None if call.to_yield else timeout + DAEMON_GRACE,  # what was handed over has no limit any more
            input=stdin_data,
            env=self.env,
            merge_output=True,
            generation=call.boot and call.boot[1],
            **self._wanted,
        )
        wanted_back = partial(_asked, (threading.get_ident(), call.thread), to_yield=call.to_yield)
        handle = CommandHandle(prepare, limit=timeout, interrupted=wanted_back, signal=self._signal, quiet=call.quiet)
        call.handles.append(handle)
        return handle

    def _tick(self) -> Tick:
        """What a wait outside hermes's clock does meanwhile: it ends at an interrupt, and shows life."""
        call, me = _call.get(), threading.get_ident()
        threads = (me,) if call is None else (me, call.thread)
        # hermes's own helper tells the gateway that a long wait is alive; absent, nothing is told.
        touch = getattr(base, "touch_activity_if_due", None)
        state = dict.fromkeys(("last_touch", "start"), time.monotonic())

        def tick() -> None:
            if _asked(threads, to_yield=False):
                raise _Interrupted("interrupted while waiting for the sandbox")
            if call is not None and call.ended != self._known.ended:  # nobody would end what it goes on to make
                raise SandboxdError("its session has ended")
            if touch is not None:
                touch(state, f"waiting for the sandbox {self._client.progress.get(self.key, '')}".rstrip())

        return tick

    def _ensure(self, tick: Tick) -> Boot:
        """Have the sandbox running, honouring interrupts; which start of it that is."""
        while (ending := _ending.get(self.key)) is not None and ending.is_alive():
            ending.join(LOOK)
            tick()
        self._use_account(tick)
        key = self._api_key
        idle_stop = self._idle_stop or 0
        if time.monotonic() >= self._settings_due:
            self._settings_due = time.monotonic() + SETTINGS_AGE
            with contextlib.suppress(Exception):  # such as of a configuration that is just being written
                plan, idle_stop = self._scoped(self._settings)
                self._wanted = {"persistent": self._persistent} | ({"plan": plan} if plan else {})
        params = self._named | self._wanted
        # Where nothing is chosen the daemon's own time counts again, but only once: somebody may ask for another later.
        if "idle_stop" in self._client.connected(tick).hello.capabilities:
            if idle_stop or idle_stop != self._idle_stop:
                params["idle_stop_s"] = idle_stop
        elif idle_stop and idle_stop != self._idle_stop:
            logger.warning("deepinfra-sandbox: this daemon is too old for the setting `idle_stop`: its own time counts")
        tick()
        self._used(self, True)  # before it is made, so that the end of its session finds it
        try:
            answer = self._client.call("sandbox.ensure", params, tick=tick)
        except RpcError as error:
            self._settings_due = 0.0  # they have not been taken
            if error.name == "unauthorized" and self._has_new_key(key, tick):
                return self._ensure(tick)
            raise
        self._idle_stop = idle_stop
        return str(answer["sandbox"]["id"]), int(answer["generation"])

    def _has_new_key(self, refused: str | None, tick: Tick) -> bool:
        """Whether the profile has another API key than the *refused* one by now; the daemon then has it, too. Asked
        only after a refusal: with a key that still works, the daemon takes any other for that of another account."""
        self._use_account(tick, look=True)
        return self._api_key != refused

    def _use_account(self, tick: Tick, *, look: bool = False) -> None:
        """Offer the profile's API key to a daemon with none or another, which takes it if its own is refused."""
        hello = self._client.connected(tick).hello

        def is_known(key: str | None) -> bool:
            return hello.configured and (key is None or hello.fingerprint in (None, fingerprint(key)))

        if look or not is_known(self._api_key):  # it may have been set or replaced since
            with contextlib.suppress(Exception):  # such as of secrets that are out of reach
                self._api_key = self._scoped(self._read_key)
        if (key := self._api_key) is None or is_known(key):
            return
        try:
            self._client.set_account(key, tick)
        except RpcError as error:
            if error.name != "account_mismatch":
                raise
            own = fingerprint(key)
            text = f"account_mismatch: {error}; {daemon.KEY_VARIABLE} of this profile is another (fingerprint {own})"
            raise SandboxdError(text, hint=OTHER_KEY_HINT) from error

    @contextlib.contextmanager
    def _alone(self, tick: Tick) -> Iterator[None]:
        """With nobody else at the files, waiting for whoever is."""
        while not self._syncing.acquire(timeout=LOOK):
            tick()
        try:
            yield
        finally:
            self._syncing.release()

    @staticmethod
    def _patience(seconds: float) -> Tick:
        until = time.monotonic() + seconds

        def tick() -> None:
            if time.monotonic() >= until:
                raise NoAnswer("the daemon, or another thread that sends files, takes too long")

        return tick

    def _still_connected(self) -> None:
        """The tick of what has to end with the agent: no daemon is waited for, or started."""
        if not self._client.alive:
            raise ConnectionLost("there is no connection to the daemon any more")

    def _look(self, tick: Tick = no_tick) -> tuple[str, Boot]:
        """The sandbox's state as the daemon knows it, and which start that is; nothing is started."""
        try:
            sandbox = self._client.call("sandbox.get", self._named, timeout=5, tick=tick)["sandbox"]
        except RpcError as error:
            if error.name not in ("sandbox_not_found", "sandbox_gone"):
                raise
            return "absent", ("", 0)
        return str(sandbox["state"]), (str(sandbox.get("id")), int(sandbox["generation"]))

    def _poll_answer(self, call: _Call, command: str) -> dict[str, Any] | None:
        """For what must not start the sandbox: the answer when asking it is of no use.

        None when it runs and can be asked. A stopped or restarted sandbox has no processes of before, so
        a teardown is done; of any other state nothing is known, and empty output keeps hermes polling.
        """
        if not threading.main_thread().is_alive() and not self._client.alive:
            raise SandboxdError("the interpreter ends, and there is no connection")  # none is made any more
        state, boot = self._look(no_tick if threading.main_thread().is_alive() else self._still_connected)
        if state == "running" and boot == self._boot:
            call.boot = boot  # it may have stopped all the same, and must not be started
            return None
        if call.teardown:
            return {"output": "", "returncode": 0}
        gone = state in ("running", "stopped", "absent", "failed") and "kill -0" in command
        return {"output": "1\n" if gone else "", "returncode": 1}

    def _enter(self, call: _Call) -> None:
        """Have the sandbox running and the session made in it."""
        tick = self._tick()
        boot = self._ensure(tick)
        call.boot = boot
        lock = self._refresh
        while not lock.acquire(timeout=LOOK):
            tick()
        try:
            if boot == self._boot and (self._snapshot_ready or time.monotonic() < self._login_again):
                return
            before = self._boot or self._known.boot
            restarted = before is not None and boot != before
            if not _survives(self.cwd, before or boot, boot):
                self.cwd = self._home
            self._begin_session(call, tick)
            self._boot = self._known.boot = boot  # only now: what was cut short is done again by the next command
            self._untold |= restarted
            # Where hermes has found that other shells do work, this one would fail the next command, too, or hang.
            broken = not self._snapshot_ready and getattr(self, "_prefer_nonlogin", False)
            self._login_again = time.monotonic() + LOGIN_PAUSE if broken else 0.0
        finally:
            lock.release()

    def _begin_session(self, call: _Call, tick: Tick) -> None:
        with self._alone(tick):
            self._files = self._synchroniser()
            self._scoped(partial(self._files.sync, force=True))
        tick()  # hermes takes an interrupt of the synchronisation for one of its failures
        self._snapshot_ready = False
        call.handles.clear()
        key = self._api_key
        call.prelude = f"mkdir -p -- {shlex.quote(self._home)} 2>/dev/null\n"  # which costs no request of its own
        self.init_session()
        call.prelude = ""
        tick()
        if call.unauthorized and self._has_new_key(key, tick):
            return self._begin_session(call, tick)
        # A script that failed by itself leaves hermes to shells without a snapshot, which it has tried by then. A
        # refused one is met again by the command.
        end = next((handle.end for handle in call.handles), None)
        if end is not None and end.reason in ("failed", "lost") and not call.refused:
            raise SandboxdError(f"the session could not be made: {end.message}", hint=end.hint)

    def _complete(self, result: dict[str, Any], call: _Call) -> dict[str, Any]:
        if result.get("returncode") is None:
            result["returncode"] = 125  # hermes reads None as success
        if call.quiet and (call.end is None or call.end.reason != "exited"):
            result["output"] = ""  # hermes takes any other text for the end of the process
            if call.teardown and call.refused:
                result["returncode"] = 0
        if result.get("cwd_observed") and call.boot is not None:
            self._known.cwds[result["cwd"]] = call.boot
        if self._untold and not call.quiet:
            # Of hermes's tools the terminal alone passes it on.
            self._untold, result["environment_recreated"] = call.raising, True
        return result

    # -- files: hermes decides what, the daemon carries

    def _synchroniser(self) -> Any:
        """hermes's manager of the files it wants in the sandbox. What a sandbox has is remembered by the daemon: a
        new manager's full upload costs nothing."""
        return file_sync.FileSyncManager(
            get_files_fn=partial(file_sync.iter_sync_files, CACHE_BASE),
            upload_fn=lambda host, remote: self._push([(host, remote)]),
            delete_fn=self._delete,
            bulk_upload_fn=self._push,
            bulk_download_fn=self._pull if can_unpack() else None,
        )

    def _push(self, files: list[tuple[str, str]]) -> None:
        pairs = [{"host": bytes_value(host), "remote": bytes_value(remote)} for host, remote in files]
        self._in_batches("fs.push", "files", pairs, self._wanted, "skipped")

    def _delete(self, remotes: list[str]) -> None:
        self._in_batches("fs.delete", "remotes", [bytes_value(remote) for remote in remotes], {}, "failed")

    def _in_batches(self, method: str, name: str, items: list[Any], more: Json, failures: str) -> None:
        while items:
            room, count = BATCH_BYTES, 0
            while count < min(BATCH, len(items)) and (room := room - encoded_size(items[count])) > 0:
                count += 1
            batch, items = items[: max(1, count)], items[max(1, count) :]
            params = self._named | more | {name: batch}
            for one in self._client.call(method, params, tick=self._tick()).get(failures, ()):
                text = one.get("text") or one.get("reason")
                raise SandboxdError(f"{method}: {one.get('host', '')} {one['remote']}: {text}")

    def _pull(self, destination: Path) -> None:
        """The caches alone: hermes would take back what a command did to skills, too, and new files beside them. And of
        these what differs from what was pushed: hermes may know no more what that was, or take what the host
        has by then for it, and would undo what was saved or deleted there since.

        Called when the sandbox was seen to run; if it has stopped all the same, it is not started, and
        an empty archive says that there is nothing to apply. So it does where the time is up: hermes holds back Ctrl-C
        meanwhile, and would try again. What the daemon still writes then has no place any more."""
        try:
            state, (_, generation) = self._look(self._still_connected)
            if state == "running":
                limit = _pull_limit("_sync_back_timeout", PULL_TIME)
                name = f"{destination.name}."  # hermes sweeps what is called so
                with tempfile.TemporaryDirectory("", name, destination.parent, ignore_cleanup_errors=True) as directory:
                    fetched = os.path.join(directory, "fetched")
                    params = {"remote": WAY_BACK, "host": bytes_value(fetched), "generation": generation}
                    params["max_bytes"] = int(_pull_limit("_sync_back_max_bytes", MAX_PULL))
                    if "pull_changed_only" in self._client.connected(self._still_connected).hello.capabilities:
                        params["changed_only"] = True
                    self._client.call("fs.pull", self._named | params, limit, self._still_connected)
                    os.replace(fetched, destination)
                return
            logger.warning("deepinfra-sandbox: changed files were not fetched from the sandbox: it is %s", state)
        except (ConnectionLost, NoAnswer) as error:
            logger.warning("deepinfra-sandbox: changed files were not fetched from the sandbox: %s", error)
        except RpcError as error:
            if error.name not in NOTHING_TO_PULL:
                raise
            if error.name != "file_not_found":
                logger.warning("deepinfra-sandbox: changed files were not fetched from the sandbox: %s", error)
        tarfile.open(destination, "w").close()


_known: dict[tuple[str, str], _Known] = {}  # by key
_ending: dict[tuple[str, str], threading.Thread] = {}  # removals under way, by key
