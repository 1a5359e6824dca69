"""The daemon's client for any Python program; the hermes plugin is one user of it.

A ``Client`` owns one connection, made when first needed and again after it was lost; all commands
and calls of all threads share it. The daemon owns the commands: closing a client ends none.
"""

from __future__ import annotations

import base64
import contextlib
import os
import platform
import threading
import uuid
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Iterator, Mapping, Sequence

from ._version import __version__
from .errors import ConnectionLost, Incompatible, NoAnswer, RpcError, SandboxdError, TooLarge
from .execution import CompletedExec, Exec
from .paths import socket_candidates
from .rpc import Connection, Json

PROTOCOL = 1
WINDOW = 1 << 20  # bytes of output in flight for one command; the protocol's own default
UPGRADE_HINT = "install versions of the daemon and of the Python package that belong together"
# Answered by the daemon itself; everything else may have to wait for the cloud.
_PROMPT_METHODS = (
    "hello",
    "daemon.",
    "rpc.",
    "exec.start",
    "exec.list",
    "sandbox.get",
    "sandbox.list",
)

Text = str | bytes
Key = tuple[str, str] | Mapping[str, str]


@dataclass
class Hello:
    """What the daemon said when the connection began. ``fingerprint`` is of its API key, or None."""

    version: str
    instance: str
    capabilities: tuple[str, ...]
    configured: bool
    fingerprint: str | None


def bytes_value(value: Text) -> str | dict[str, str]:
    """The protocol's value for what Linux has bytes for: a string, or base64 where it is no UTF-8."""
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            value = value.encode("utf-8", "surrogateescape")
    return {"b64": base64.b64encode(value).decode("ascii")}


def key_value(key: Key) -> dict[str, str]:
    """*key* = (profile, task), or a mapping with these names."""
    profile, task = (key["profile"], key["task"]) if isinstance(key, Mapping) else key
    return {"profile": profile, "task": task}


class Client:
    """A client of the daemon whose socket is *socket_path*, or is found as documented.

    *timeout* is in seconds and bounds connecting and the answers that the daemon gives from what it
    knows. Calls that wait for the cloud end when the daemon says so. Safe to use from many threads;
    after a fork the child makes its own connection.
    """

    def __init__(self, socket_path: str | None = None, timeout: float = 10.0) -> None:
        self.timeout = timeout
        self.progress: dict[tuple[str, str], str] = {}  # last progress text of each key waited for
        self._socket_path = socket_path
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._hello: Hello | None = None
        _clients.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; commands go on in the daemon. The client can be used again."""
        connection = self._connection
        if connection is not None:
            connection.close()

    def hello(self) -> Hello:
        """Connect if need be. Raises ``DaemonNotRunning``, ``NoAnswer`` or ``Incompatible``."""
        return self._connected()[1]

    def submit(self, method: str, params: Json | None = None) -> Future[Json]:
        """Send a request and return its future; raises as ``hello`` while connecting."""
        return self._connected()[0].request(method, params or {})

    def post(self, method: str, params: Json) -> bool:
        """Send a request if there is a connection, wait for nothing; False when there is none."""
        try:
            if self._connection is None:
                return False
            self._connection.request(method, params)
            return True
        except SandboxdError:
            return False

    def call(self, method: str, params: Json | None = None, timeout: float | None = None) -> Json:
        """The result of one request, waiting at most *timeout* seconds (default: see the class).

        Raises ``RpcError``, ``ConnectionLost``, ``NoAnswer``, ``TooLarge``, and as ``hello``.
        """
        if timeout is None and method.startswith(_PROMPT_METHODS):
            timeout = self.timeout
        return _answer(self.submit(method, params), method, timeout)

    def run(self, argv: Sequence[Text] | None = None, **options: Any) -> CompletedExec:
        """Run a command to its end; arguments as for ``prepare``, errors as for ``start``.

        When the wait is interrupted, the command is cancelled.
        """
        execution = self.prepare(argv, **options)
        with _not_left_behind(execution):
            _answer(execution.send(), "exec.start", self.timeout)
            return execution.wait()

    def start(self, argv: Sequence[Text] | None = None, **options: Any) -> Exec:
        """Start a command and return it once the daemon has accepted it; arguments as for ``prepare``.

        Raises as ``call``. Only ``ConnectionLost`` and ``NoAnswer`` leave open whether it ran.
        """
        execution = self.prepare(argv, **options)
        with _not_left_behind(execution):
            _answer(execution.send(), "exec.start", self.timeout)
        return execution

    def prepare(
        self,
        argv: Sequence[Text] | None = None,
        *,
        script: Text | None = None,
        login: bool = False,
        key: Key = ("default", "default"),
        timeout: float | None = None,
        input: Text | None = None,
        env: Mapping[str, Text] | None = None,
        cwd: Text | None = None,
        merge_output: bool = False,
        persistent: bool | None = None,
        plan: str | None = None,
        window: int = WINDOW,
        exec_id: str | None = None,
    ) -> Exec:
        """*argv*, or the bash *script* (of a *login* shell), for the sandbox of *key*; not yet sent.

        The sandbox is created (*persistent*, *plan*) or started as needed. *timeout*: seconds, after
        which the daemon ends the command; None is no limit. *input* None is /dev/null, empty an
        immediate end of file. *window*: bytes of output in flight. Raises as ``hello``.
        """
        if (argv is None) == (script is None):
            raise TypeError("give either argv or script")
        if isinstance(argv, (str, bytes)):
            raise TypeError("argv is a sequence of arguments; for a shell line use script=")
        if not 4096 <= window <= 16777216:
            raise ValueError("window must be between 4096 and 16777216 bytes")
        params: Json = {"exec_id": exec_id or f"py-{uuid.uuid4().hex}", "key": key_value(key)}
        if argv is not None:
            params["argv"] = [bytes_value(argument) for argument in argv]
        else:
            params["script"] = bytes_value(script or "")
            params["login"] = login
        if input is not None:
            raw = input.encode("utf-8", "surrogateescape") if isinstance(input, str) else input
            params["stdin"] = bytes_value(raw) if raw else ""
        if env:
            params["env"] = {name: bytes_value(value) for name, value in env.items()}
        if cwd is not None:
            params["cwd"] = bytes_value(cwd)
        optional = {"timeout_s": timeout, "persistent": persistent, "plan": plan}
        params.update({name: value for name, value in optional.items() if value is not None})
        params.update(merge_output=merge_output, window=window)
        return Exec(self._connected()[0], params)

    def set_account(self, api_key: str) -> None:
        """Hand the API key to a daemon that has none; raises as ``call``."""
        result = self.call("account.set", {"api_key": api_key})
        if (hello := self._hello) is not None:
            hello.configured, hello.fingerprint = True, result.get("fingerprint")

    def _connected(self) -> tuple[Connection, Hello]:
        with self._lock:
            if self._connection is not None and self._hello is not None and self._connection.alive:
                return self._connection, self._hello
            connection = Connection.open(
                socket_candidates(self._socket_path), self.timeout, self._on_notification
            )
            try:
                self._hello = _greet(connection, self.timeout)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            return connection, self._hello

    def _on_notification(self, method: str, params: Json) -> None:
        key = params.get("key")
        if method == "sandbox.progress" and isinstance(key, dict):
            self.progress[(str(key.get("profile")), str(key.get("task")))] = str(params.get("text"))

    def _after_fork(self) -> None:
        connection, self._connection, self._lock = self._connection, None, threading.Lock()
        if connection is not None and connection.alive:
            connection.abandon()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_connections() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_forget_connections)


@contextlib.contextmanager
def _not_left_behind(execution: Exec) -> Iterator[None]:
    """Cancels a command whose caller stopped waiting and so cannot do it."""
    try:
        yield
    except (RpcError, TooLarge, ConnectionLost):
        raise  # it does not run, or is out of reach
    except BaseException:
        execution.kill()
        raise


def _answer(future: Future[Json], method: str, timeout: float | None) -> Json:
    try:
        return future.result(timeout)
    except TimeoutError:
        raise NoAnswer(
            f"the daemon did not answer {method} within {timeout} s",
            hint="see: deepinfra-sandboxd status; restart it: systemctl --user restart deepinfra-sandboxd",
        ) from None


def _greet(connection: Connection, timeout: float) -> Hello:
    own = {
        "client": f"deepinfra_sandboxd/{__version__} python/{platform.python_version()}",
        "protocol": {"min": PROTOCOL, "max": PROTOCOL},
    }
    try:
        answer = _answer(connection.request("hello", own), "hello", timeout)
    except RpcError as error:
        raise Incompatible(
            f"the daemon refused protocol {PROTOCOL}: {error}", hint=error.hint or UPGRADE_HINT
        ) from error
    except ConnectionLost as error:
        raise Incompatible(
            f"no daemon of ours answers there: {error}", hint=UPGRADE_HINT
        ) from error
    if answer.get("protocol") != PROTOCOL:
        raise Incompatible(
            f"the daemon speaks protocol {answer.get('protocol')}, not {PROTOCOL}",
            hint=UPGRADE_HINT,
        )
    account = answer.get("account")
    account = account if isinstance(account, dict) else {}
    return Hello(
        version=str(answer.get("version", "")),
        instance=str(answer.get("instance", "")),
        capabilities=tuple(answer.get("capabilities") or ()),
        configured=account.get("configured") is True,
        fingerprint=account.get("fingerprint"),
    )
