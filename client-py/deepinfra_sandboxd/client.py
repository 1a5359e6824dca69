"""The daemon's client for any Python program; the hermes plugin is one user of it.

A ``Client`` owns one connection, made when first needed and again after it was lost; all commands
and calls of all threads share it. The daemon owns the commands: closing a client ends none.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
import uuid
import weakref
from typing import Any, Mapping, Sequence

from . import daemon
from .errors import ConnectionLost, DaemonNotRunning, RpcError, SandboxdError
from .execution import CompletedExec, Exec, bytes_value
from .rpc import LOOK, Call, Connection, Hello, Json, Tick, encoded_size, no_tick

WINDOW = 1 << 20  # bytes of output in flight for one command; the protocol's own default
INLINE = 1 << 17  # bytes of script and input that go with the request itself
KEY_LIMIT = 30.0  # seconds for the daemon to try an API key
START_LIMIT = 8.0  # seconds that a daemon gets to listen after it was started here
GRACE = 1.5  # seconds in which a daemon that was lost is expected back by itself
FORGOTTEN = 10.0  # seconds after which what others did about a lost daemon counts no more
ATTEMPTS = 5  # at a call whose connection is lost each time
# Answered by the daemon itself; everything else may have to wait for the cloud.
_PROMPT = ("daemon.", "rpc.", "exec.list", "sandbox.get", "sandbox.list")
_ONCE = ("sandbox.stop", "sandbox.terminate")  # to repeat these might undo what was done in between

Text = str | bytes
Key = tuple[str, str] | Mapping[str, str]


def key_value(key: Key) -> dict[str, str]:
    """*key* = (profile, task), or a mapping with these names."""
    profile, task = (key["profile"], key["task"]) if isinstance(key, Mapping) else key
    return {"profile": profile, "task": task}


class Client:
    """A client of the daemon whose socket is *socket_path*, or is found as documented.

    *timeout*, in seconds, bounds the answers that the daemon gives from what it knows; calls that wait
    for the cloud end when the daemon says so. After a lost connection a daemon gets *patience* seconds
    to be there again. *start*: start a daemon that is not running. *hand_over*: give a daemon that has no
    API key the one in ``DEEPINFRA_API_KEY`` before anything that needs it. Safe to use from many threads; after a
    fork the child makes its own connection.
    """

    def __init__(
        self, socket_path: str | None = None, timeout: float = 10.0, *, patience: float = 30.0, start: bool = True,
        hand_over: bool = True,
    ) -> None:  # fmt: skip
        self.timeout, self.patience = timeout, patience
        self.progress: dict[tuple[str, str], str] = {}  # last progress text of each key waited for
        self._socket_path, self._start, self._hand_over = socket_path, start, hand_over
        self._connection: Connection | None = None
        self._gone_since: float | None = None
        self._tried = 0.0  # when somebody last tried to connect, monotonic
        self._starter: _Starter | None
        self.after_fork()
        forked.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; commands go on in the daemon. The client can be used again."""
        with self.lock:
            if self._connection is not None:
                self._connection.end("it was closed here")
                self._connection = None

    @property
    def alive(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and self._connection.lost is None

    def hello(self) -> Hello:
        """Connect if need be. Raises ``DaemonNotRunning``, ``ConnectionLost``, ``NoAnswer`` or ``Incompatible``."""
        return self.connected().hello

    def call(self, method: str, params: Json | None = None, timeout: float | None = None, tick: Tick = no_tick) -> Json:
        """The result of one request, waiting at most *timeout* seconds (default: see the class).

        A request whose connection is lost is sent again if it may be. *tick* is called every 20 ms and
        may end the wait by raising. Raises ``RpcError``, ``ConnectionLost``, ``NoAnswer``, ``TooLarge``,
        and as ``hello``.
        """
        if timeout is None and method.startswith(_PROMPT):
            timeout = self.timeout
        if not method.startswith((*_PROMPT, "account.")):
            self._give_key(tick)
        until, lost = time.monotonic() + self.patience, 0
        while True:
            call, sent = Call(self.connected(tick), self.lock), False
            try:
                with self.lock:
                    call.connection.request(method, params or {}, call.answered)
                sent = True
                answer = call.wait(method, timeout, tick)
            except ConnectionLost as error:
                answer = error
            if isinstance(answer, ConnectionLost):
                lost += 1
                again = lost < ATTEMPTS and not (sent and method in _ONCE)
            else:  # a daemon that is just going says so, and its successor is asked
                again = isinstance(answer, RpcError) and answer.name == "shutting_down" and time.monotonic() < until
            if not again:
                break
            tick()
            time.sleep(LOOK)
        if isinstance(answer, SandboxdError):
            raise answer
        return answer

    def post(self, method: str, params: Json) -> bool:
        """Send a request if there is a connection, wait for nothing; False when there is none."""
        with self.lock:
            return self._connection is not None and self._connection.tell(method, params, lambda _: None)

    def run(self, argv: Sequence[Text] | None = None, **options: Any) -> CompletedExec:
        """Run a command to its end; arguments as for ``prepare``, errors as for ``start``.

        When the wait is interrupted, the command is cancelled.
        """
        with self.start(argv, **options) as execution:
            return execution.wait()

    def start(self, argv: Sequence[Text] | None = None, **options: Any) -> Exec:
        """Start a command and return it once the daemon has accepted it; arguments as for ``prepare``.

        Raises as ``call``; only ``NoAnswer`` leaves open whether it ran. Iterate over the result for the
        output as it arrives.
        """
        execution = self.prepare(argv, **options)
        try:
            return self.begin(execution)
        except BaseException:
            execution.__exit__()  # its caller cannot
            raise

    def attach(self, exec_id: str, *, offset: int = 0, window: int = WINDOW) -> Exec:
        """A command that was started before, by whichever process, from byte *offset* of its output."""
        return self.begin(Exec(self, {"exec_id": exec_id, "offset": offset, "window": window}, {}))

    def begin(self, execution: Exec) -> Exec:
        """Send what ``prepare`` made and wait until it is accepted; raises as ``start``."""
        self._give_key(no_tick)
        execution.send(no_tick)
        execution.accepted(self.timeout + self.patience)
        return execution

    def prepare(
        self, argv: Sequence[Text] | None = None, *, script: Text | None = None, login: bool = False,
        key: Key = ("default", "default"), timeout: float | None = None, input: Text | None = None,
        env: Mapping[str, Text] | None = None, cwd: Text | None = None, merge_output: bool = False,
        persistent: bool | None = None, plan: str | None = None, window: int = WINDOW, exec_id: str | None = None,
        generation: int | None = None,
    ) -> Exec:  # fmt: skip
        """*argv*, or the bash *script* (of a *login* shell), for the sandbox of *key*; not yet sent.

        The sandbox is created (*persistent*, *plan*) or started as needed. *timeout*: seconds, after
        which the daemon ends the command; None is no limit. *input* None is /dev/null, empty an
        immediate end of file. *window*: bytes of output in flight. *generation*: run only in that start of
        the sandbox (as ``sandbox.ensure`` told it), as it runs now; else the command fails with the error
        ``generation_changed``, and nothing was run or started.
        """
        if (argv is None) == (script is None):
            raise TypeError("give either argv or script")
        if isinstance(argv, (str, bytes)):
            raise TypeError("argv is a sequence of arguments; for a shell line use script=")
        if not 4096 <= window <= 16777216:
            raise ValueError("window must be between 4096 and 16777216 bytes")
        params: Json = {"exec_id": exec_id or f"py-{uuid.uuid4().hex}", "key": key_value(key)}
        pieces: dict[str, bytes] = {}
        if argv is not None:
            params["argv"] = [bytes_value(argument) for argument in argv]
        else:
            params["login"] = login
        room = INLINE
        for stream, value in (("script", script), ("stdin", input)):
            if value is None:
                continue
            if len(value) <= room and (size := encoded_size(shown := bytes_value(value))) <= room:
                params[stream] = shown
                room -= size
            else:
                pieces[stream] = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        if "script" in pieces:
            params["script_size"] = len(pieces["script"])
            params["script_sha256"] = hashlib.sha256(pieces["script"]).hexdigest()
        if "stdin" in pieces:
            params["stdin_open"] = True
        if env:
            params["env"] = {name: bytes_value(value) for name, value in env.items()}
        if cwd is not None:
            params["cwd"] = bytes_value(cwd)
        optional = {"timeout_s": timeout, "persistent": persistent, "plan": plan, "generation": generation}
        params |= {name: value for name, value in optional.items() if value is not None}
        return Exec(self, params | {"merge_output": merge_output, "window": window}, pieces)

    def set_account(self, api_key: str, tick: Tick = no_tick) -> None:
        """Hand the API key to a daemon that has none, which tries it; raises as ``call``."""
        result = self.call("account.set", {"api_key": api_key}, KEY_LIMIT, tick)
        hello = self.hello()
        hello.configured, hello.fingerprint = True, result.get("fingerprint")

    def _give_key(self, tick: Tick) -> None:
        key = os.environ.get(daemon.KEY_VARIABLE, "").strip() if self._hand_over else ""
        if key and not self.connected(tick).hello.configured:
            self.set_account(key, tick)

    def connected(self, tick: Tick = no_tick) -> Connection:
        """The live connection, made if need be; *tick* and errors as for ``call`` and ``hello``."""
        while (connection := self._connection) is None or connection.lost is not None:
            tick()
            if self._connecting.acquire(timeout=LOOK):
                try:
                    if self._connection is connection:
                        self._connection = self._connect(tick)
                        self._gone_since = self._starter = None
                finally:
                    self._connecting.release()
        return connection

    def _connect(self, tick: Tick) -> Connection:
        """Connect, waiting for a daemon that went away and starting one that does not come back.

        *tick* may end this at any time: how long the daemon has been away, and that one was started, counts for all
        who come meanwhile."""
        again = self._connection is not None
        if time.monotonic() - self._tried > FORGOTTEN:
            self._gone_since = self._starter = None
        self._gone_since = since = self._gone_since or time.monotonic()
        if again:
            time.sleep(LOOK)  # not to hammer a daemon that ends each connection
        while True:
            self._tried = time.monotonic()
            try:
                paths = daemon.socket_candidates(self._socket_path)
                connection = Connection.open(paths, self.timeout, self.lock, self._notified, tick)
                if not daemon.is_another(connection.hello.instance, self._socket_path):
                    return connection
                with self.lock:
                    connection.end("it is another daemon's")
                place = daemon.state_dir()
                hint = f"start it with: {daemon.PROGRAM} serve --state-dir {place}"
                raise DaemonNotRunning(f"the daemon of {place} is not running", hint=hint)
            except (DaemonNotRunning, ConnectionLost) as error:
                again = again or isinstance(error, ConnectionLost)
                if self._start and self._starter is None and time.monotonic() >= since + (GRACE if again else 0):
                    self._starter = _Starter(self._socket_path)
                starter, until = self._starter, since + (self.patience if again else 0)
                if starter is not None:
                    until = max(until, starter.until)
                    error.hint = f"it was started and does not listen: {starter.told}" if starter.told else error.hint
                if time.monotonic() >= until or (starter is not None and starter.error is not None):
                    self._starter = None  # who asks next may start one again
                    raise (starter and starter.error) or error
            tick()
            time.sleep(LOOK)

    def _notified(self, method: str, params: Json) -> None:
        if method == "sandbox.progress":
            key = params["key"]
            self.progress[(key["profile"], key["task"])] = str(params.get("text"))

    def after_fork(self) -> None:
        """At first, and in the child of a fork: its parent has the connection, and threads that may hold the locks."""
        connection, self._connection = self._connection, None
        self.lock = threading.Lock()  # guards the connection and all that goes through it
        self._connecting, self._starter = threading.Lock(), None
        if connection is not None:
            connection.forget()


class _Starter:
    """Has a daemon started, on a thread of its own: systemd may take its time, and no caller has to wait for that."""

    def __init__(self, socket_path: str | None) -> None:
        self.until = math.inf  # when it should listen, monotonic
        self.told = ""  # where to look if it does not
        self.error: Exception | None = None  # why there is none
        thread = threading.Thread(target=self._run, args=(socket_path,), name="deepinfra-sandboxd-start", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no threads left, or the interpreter ends
            self._run(socket_path)

    def _run(self, socket_path: str | None) -> None:
        try:
            self.told = daemon.start(socket_path)
        except Exception as error:
            self.error = error
        self.until = time.monotonic() + START_LIMIT if self.told else 0.0


forked: weakref.WeakSet[Any] = weakref.WeakSet()  # whose `after_fork` is called in the child of a fork
os.register_at_fork(after_in_child=lambda: [each.after_fork() for each in list(forked)])
