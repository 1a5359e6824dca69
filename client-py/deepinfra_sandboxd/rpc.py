"""One connection to the daemon: newline-terminated JSON-RPC 2.0 over a Unix socket.

There is no thread of its own. Whoever waits for something reads the socket meanwhile, for all that
wait (``wait``): one thread at a time, which hands over when it has what it wanted. That spares a
short call two thread switches, and makes forks and the interpreter's end simple. *Sending never
waits*: what the socket does not take at once, the reading thread sends.

All state is guarded by the lock of the client, which is held by the caller of every method here.
When the connection ends, each request under way is answered with ``ConnectionLost`` and everything
that waits returns. No object here has a finalizer: garbage collection may run while the lock is held.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import platform
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Sequence

from .errors import (
    START_HINT, UPGRADE_HINT, ConnectionLost, DaemonNotRunning, DaemonTooOld, Incompatible, NoAnswer,
    RpcError, SandboxdError, TooLarge,
)  # fmt: skip

if TYPE_CHECKING:
    from .execution import Exec

PROTOCOL = 1
REQUIRED = frozenset({"exec.attach", "exec.stdin", "fs", "generation"})  # capabilities that we build on
MAX_LINE = 1 << 20  # bytes of one message, newline included; both sides refuse more
LOOK = 0.02  # seconds between two looks for what ends a wait, such as an interrupt
LONGEST = 3600.0  # seconds in one wait of the kernel's, which takes no more than 24 days
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
Json = dict[str, Any]
Answered = Callable[[Json | SandboxdError], None]
Tick = Callable[[], None]
RESTART_HINT = "see: deepinfra-sandboxd status; restart it: systemctl --user restart deepinfra-sandboxd"


def encoded_size(value: Any) -> int:
    """Bytes that *value* takes in a message."""
    return len(_encode(value).encode())


def raw_size(message: Any) -> int:
    """Bytes that follow the line of *message*: only an ``exec.output`` is followed by any."""
    if not isinstance(message, dict) or message.get("method") != "exec.output":
        return 0
    size = message["params"].get("raw", 0)
    if not 0 <= size <= MAX_LINE:
        raise ValueError("the peer sent output of no possible size")
    return int(size)


def members_of(kind: Any, told: Json) -> Json:
    """Of what the daemon told, what the dataclass *kind* has a member for."""
    return {name: told[name] for name in kind.__dataclass_fields__ if name in told}


def no_tick() -> None:
    """Nothing to look for while waiting."""


@dataclass
class Hello:
    """What the daemon said when the connection began. ``fingerprint`` is of its API key, or None."""

    version: str = ""
    instance: str = ""
    capabilities: Sequence[str] = ()
    configured: bool = False
    fingerprint: str | None = None


class Connection:
    """A connection, from ``open`` until the peer leaves or ``end`` is called."""

    hello: Hello

    def __init__(self, sock: socket.socket, lock: threading.Lock, notified: Callable[[str, Json], None]) -> None:
        self._sock, self._lock, self._notified = sock, lock, notified
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._numbers = itertools.count(1)
        self._answers: dict[int, Answered] = {}
        self.receivers: dict[str, Exec] = {}  # what belongs to these is handed to them under the lock
        self._unsent, self._buffer, self._filled = bytearray(), bytearray(MAX_LINE), 0
        self._received = memoryview(self._buffer)  # slices of it are no copies
        self._heard = self._reading = False
        self._followers: list[threading.Condition] = []  # who waits while another thread reads
        self.lost: ConnectionLost | None = None

    @classmethod
    def open(
        cls, paths: list[str], timeout: float, lock: threading.Lock, notified: Callable[[str, Json], None], tick: Tick
    ) -> Connection:
        """Connect to the first path that somebody listens on, and exchange hellos. The lock is not held.

        *timeout* in seconds is for the answer; *tick* may end the wait by raising. Raises
        ``DaemonNotRunning``, ``ConnectionLost``, ``NoAnswer``, and ``Incompatible`` when it is none of ours.
        """
        tried = []
        for path in paths:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout)
                sock.connect(path)
                uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
                if uid != os.getuid():
                    raise Incompatible(f"the process listening on {path} belongs to user id {uid}")
                sock.setblocking(False)
                connection = cls(sock, lock, notified)
                connection._greet(timeout, tick)
                return connection
            except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
                tried.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                sock.close()
            except BaseException:
                sock.close()
                raise
        raise DaemonNotRunning(f"the daemon deepinfra-sandboxd is not running ({'; '.join(tried)})", hint=START_HINT)

    def _greet(self, timeout: float, tick: Tick) -> None:
        from . import __version__

        client = f"deepinfra_sandboxd/{__version__} python/{platform.python_version()}"
        span = {"min": max(1, PROTOCOL - 1), "max": PROTOCOL}
        call = Call(self, self._lock)
        with self._lock:
            self.request("hello", {"client": client, "protocol": span, "raw_output": True}, call.answered)
        answer = call.wait("hello", timeout, tick)
        if isinstance(answer, ConnectionLost) and not self._heard:
            raise answer  # it was just being stopped
        if isinstance(answer, ConnectionLost):
            raise Incompatible(f"no daemon of ours answers there: {answer}", hint=UPGRADE_HINT)
        if isinstance(answer, SandboxdError):
            hint = answer.hint or UPGRADE_HINT
            raise Incompatible(f"the daemon refused protocol {PROTOCOL}: {answer}", hint=hint)
        if answer.get("protocol") not in range(span["min"], PROTOCOL + 1):
            text = f"the daemon speaks protocol {answer.get('protocol')}, not {PROTOCOL}"
            raise Incompatible(text, hint=UPGRADE_HINT)
        self.hello = Hello(**members_of(Hello, answer | (answer.get("account") or {})))
        if missing := REQUIRED.difference(self.hello.capabilities):
            text = (
                f"the daemon ({self.hello.version}) is older than this package and lacks: {', '.join(sorted(missing))}"
            )
            raise DaemonTooOld(text, hint=UPGRADE_HINT)

    def request(self, method: str, params: Json, answered: Answered | None = None) -> None:
        """Send a request; *answered* gets the result, ``RpcError`` or ``ConnectionLost``. Without
        *answered* it is a notification. Raises ``TooLarge`` or ``ConnectionLost`` with nothing sent."""
        message: Json = {"jsonrpc": "2.0", "method": method, "params": params}
        if answered is not None:
            message["id"] = number = next(self._numbers)
        line = _encode(message).encode() + b"\n"
        if len(line) > MAX_LINE:
            raise TooLarge(
                f"{method}: {len(line)} bytes do not fit in the {MAX_LINE} bytes of one message; nothing was sent",
                hint="pass large data by `input` or through a file",
            )
        if self.lost is not None:
            raise self.lost
        try:
            sent = 0 if self._unsent else self._sock.send(line, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.end(str(error))
            raise ConnectionLost(f"no connection to the daemon: {error}") from error
        except BaseException:  # a signal's: who knows how much of the line is out
            self.end("sending was interrupted")
            raise
        if answered is not None:
            self._answers[number] = answered
        if sent < len(line):
            self._unsent += line[sent:]
            self.wake()

    def tell(self, method: str, params: Json, answered: Answered | None = None) -> bool:
        """``request`` for who is content to learn of a lost connection elsewhere; False when nothing was sent."""
        try:
            self.request(method, params, answered)
        except SandboxdError:
            return False
        return True

    def wait(self, changed: threading.Condition, ready: Callable[[], bool], deadline: float | None) -> None:
        """Return once *ready*, which is looked at when something has come and when *changed* is notified;
        at the *deadline* (monotonic; None: none), but not before what is there already was read; and at the
        connection's end."""
        looked = False
        try:
            while not ready() and self.lost is None:
                left = LONGEST if deadline is None else min(LONGEST, max(0.0, deadline - time.monotonic()))
                if left == 0 and (looked or self._reading):
                    return
                if not self._reading:
                    self._read(left)
                    looked = True
                    continue
                self._followers.append(changed)
                try:
                    changed.wait(left)
                finally:
                    self._followers.remove(changed)
        finally:
            if not self._reading and self._followers:
                self._followers[0].notify()

    def wake(self) -> None:
        """Make the thread that reads look at what it waits for, and at what is to be sent."""
        if self._reading:
            with contextlib.suppress(OSError):  # it has been told already
                self._waker.send(b"!")

    def end(self, reason: str) -> None:
        """End it; the daemon keeps what runs. Idempotent."""
        if self.lost is not None:
            return
        self.lost = ConnectionLost(
            f"the connection to the daemon ended: {reason}", hint="see: deepinfra-sandboxd status"
        )
        self.wake()
        answers, self._answers = self._answers, {}
        receivers, self.receivers = self.receivers, {}
        for answered in answers.values():
            answered(self.lost)
        for receiver in receivers.values():
            receiver.on_lost()
        for follower in self._followers:
            follower.notify()
        self._close()

    def forget(self) -> None:
        """In the child of a fork: let go of the parent's socket without touching its stream."""
        self.lost, self._reading = ConnectionLost("the process was forked"), False
        self._close()

    def _close(self) -> None:
        if not self._reading:  # else the thread that reads does it
            for sock in (self._sock, self._waker, self._woken):
                sock.close()

    def _read(self, timeout: float) -> None:
        """Wait for the socket without the lock, then take in what has come."""
        self._reading = True
        self._poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        reason = ""
        try:
            self._lock.release()
            try:
                events = dict(self._poll.poll(math.ceil(1000 * timeout)))
            finally:
                self._lock.acquire()
                self._reading = False
            if self._woken.fileno() in events:
                self._woken.recv(64)
            event = events.get(self._sock.fileno(), 0)
            if event & select.POLLOUT:
                del self._unsent[: self._sock.send(self._unsent, socket.MSG_NOSIGNAL)]
            if event & ~select.POLLOUT and self.lost is None:
                reason = "reading was interrupted"  # any exception may come from a signal, and tear a message apart
                reason = self._take_in()
        except BlockingIOError:
            reason = ""
        except Exception as error:
            reason = str(error) or repr(error)
        finally:
            if reason:
                self.end(reason)
            elif self.lost is not None:
                self._close()

    def _take_in(self) -> str:
        """Dispatch all whole lines; why the connection has ended, or an empty text."""
        size = self._sock.recv_into(self._received[self._filled :])
        if size == 0:
            return "the daemon closed it"  # a torn last line is no message
        begin, self._heard = 0, True
        self._filled += size
        while (end := self._buffer.find(b"\n", begin, self._filled) + 1) > 0:
            message = json.loads(str(self._received[begin:end], "utf-8"))
            behind = end + raw_size(message)
            if behind > self._filled:
                break  # until all of it is there
            self._dispatch(message, self._received[end:behind])
            begin = behind
        if self._filled - begin == MAX_LINE:
            return "the peer sent a line longer than any message"
        self._received[: self._filled - begin] = self._received[begin : self._filled]
        self._filled -= begin
        return ""

    def _dispatch(self, message: Any, raw: memoryview) -> None:
        if not isinstance(message, dict):
            raise ValueError("the peer sent something that is not JSON-RPC 2.0")
        method, params = message.get("method"), message.get("params") or {}
        if method == "exec.output":
            if (receiver := self.receivers.get(params["exec_id"])) is not None:
                receiver.on_output(params, raw)
        elif method == "exec.exit":
            if (receiver := self.receivers.pop(params["exec_id"], None)) is not None:
                receiver.on_exit(params)
        elif method is not None:
            self._notified(method, params)
        else:
            error, answered = message.get("error"), self._answers.pop(message.get("id", 0), None)
            if error is not None and message.get("id") is None:  # about no request of ours: it hangs up next
                raise ValueError(f"the daemon refused what was sent: {error.get('message')}")
            if answered is not None:
                answered(message.get("result", {}) if error is None else RpcError(error))


class Call:
    """One request and its answer."""

    def __init__(self, connection: Connection, lock: threading.Lock) -> None:
        self.connection, self._changed = connection, threading.Condition(lock)
        self._answer: Json | SandboxdError | None = None

    def answered(self, answer: Json | SandboxdError) -> None:
        self._answer = answer
        self._changed.notify()

    def wait(self, method: str, timeout: float | None, tick: Tick) -> Json | SandboxdError:
        """The answer; raises ``NoAnswer`` after *timeout* seconds, and whatever *tick* raises."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            look = None if tick is no_tick else time.monotonic() + LOOK
            with self._changed:
                until = min(filter(None, (deadline, look)), default=None)
                self.connection.wait(self._changed, lambda: self._answer is not None, until)
            if self._answer is not None:
                return self._answer
            if deadline is not None and time.monotonic() >= deadline:
                raise NoAnswer(f"the daemon did not answer {method} within {timeout} s", hint=RESTART_HINT)
            tick()
