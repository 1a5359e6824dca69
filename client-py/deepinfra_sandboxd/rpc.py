"""One connection to the daemon: newline-terminated JSON-RPC 2.0 over a Unix socket.

A ``Connection`` owns its socket and one daemon thread, from ``open`` until the peer leaves or
``close``. That thread does all reading and the part of the writing that the socket would not take
at once, so that *no caller ever waits for the socket*, and it hands every message to a receiver
that must not block. When the connection ends, each request under way fails with
``ConnectionLost`` and each receiver is told. Objects here have no finalizers: garbage collection
may run while our lock is held.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import select
import socket
import struct
import threading
from concurrent.futures import Future
from typing import Any, Callable, Protocol

from .errors import START_HINT, ConnectionLost, DaemonNotRunning, Incompatible, RpcError, TooLarge

logger = logging.getLogger(__name__)

MAX_LINE = 1 << 20  # bytes of one message, newline included; both sides refuse more
Json = dict[str, Any]


class Receiver(Protocol):
    """Takes what belongs to one exec. Called on the connection's thread: must not block or raise."""

    def on_output(self, params: Json) -> None:
        ...

    def on_exit(self, params: Json) -> None:
        ...

    def on_lost(self, error: ConnectionLost) -> None:
        ...


class Connection:
    """A live connection. All methods may be called from any thread, and none waits."""

    def __init__(self, sock: socket.socket, on_notification: Callable[[str, Json], None]) -> None:
        self._sock = sock
        self._on_notification = on_notification
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pending: dict[int, Future[Json]] = {}
        self._receivers: dict[str, Receiver] = {}
        self._backlog = bytearray()  # what the socket would not take at once
        self._ended: str | None = None
        self._refused = False  # the peer has gone, which the thread is about to notice
        sock.setblocking(False)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        try:
            threading.Thread(target=self._run, name="deepinfra-sandboxd-io", daemon=True).start()
        except RuntimeError as error:  # no threads left, or the interpreter is shutting down
            self._close_sockets()
            raise ConnectionLost(str(error), unsent=True) from error

    @classmethod
    def open(
        cls, paths: list[str], timeout: float, on_notification: Callable[[str, Json], None]
    ) -> Connection:
        """Connect to the first path that somebody listens on; *timeout* in seconds is for each.

        Raises ``DaemonNotRunning``, and ``Incompatible`` when the peer is another user's process.
        """
        tried = []
        for path in paths:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                sock.settimeout(timeout)
                sock.connect(path)
            except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
                sock.close()
                tried.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            _, uid, _ = struct.unpack(
                "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            )
            if uid != os.getuid():
                sock.close()
                raise Incompatible(f"the process listening on {path} belongs to user id {uid}")
            return cls(sock, on_notification)
        raise DaemonNotRunning(
            f"the daemon deepinfra-sandboxd is not running ({'; '.join(tried)})", hint=START_HINT
        )

    @property
    def alive(self) -> bool:
        return self._ended is None and not self._refused

    def request(self, method: str, params: Json) -> Future[Json]:
        """Send a request. The future yields the result, or raises ``RpcError``/``ConnectionLost``.

        Raises ``TooLarge``, or ``ConnectionLost`` (``unsent``), before anything is sent.
        """
        number = next(self._ids)
        future: Future[Json] = Future()
        with self._lock:
            self._pending[number] = future
        try:
            self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        except BaseException:
            with self._lock:
                self._pending.pop(number, None)
            raise
        return future

    def notify(self, method: str, params: Json) -> None:
        """Send a notification; errors as ``request``."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def attach(self, exec_id: str, receiver: Receiver) -> None:
        """Hand the messages of *exec_id* to *receiver* until its exit or ``detach``."""
        with self._lock:
            self._receivers[exec_id] = receiver

    def detach(self, exec_id: str) -> None:
        with self._lock:
            self._receivers.pop(exec_id, None)

    def close(self) -> None:
        """End the connection. The daemon keeps what runs; idempotent."""
        self._end("it was closed here")
        with self._lock:
            self._wake()

    def abandon(self) -> None:
        """In the child of a fork: let go of the parent's socket without touching its stream.

        The lock may be held for ever by a thread that does not exist here, hence a new one.
        """
        self._lock = threading.Lock()
        self._ended = "the process was forked"
        self._pending, self._receivers = {}, {}
        self._close_sockets()

    def _send(self, message: Json) -> None:
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE:
            raise TooLarge(
                f"{message['method']}: {len(line)} bytes do not fit in the {MAX_LINE} bytes of one"
                " message; nothing was run",
                hint="pass large data through a file in the sandbox, in several pieces",
            )
        with self._lock:
            if self._ended is not None:
                raise ConnectionLost(f"no connection to the daemon: {self._ended}", unsent=True)
            sent = 0
            if not self._backlog:
                try:
                    sent = self._sock.send(line, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    pass
                except OSError as error:
                    self._refused = True
                    raise ConnectionLost(
                        f"no connection to the daemon: {error}", unsent=True
                    ) from error
            self._backlog += line[sent:]
            if self._backlog:
                self._wake()

    def _wake(self) -> None:
        """Make the thread look around; under the lock, as the closing of its sockets is."""
        with contextlib.suppress(OSError):  # it has been told already, or has ended
            self._waker.send(b"!")

    def _run(self) -> None:
        """The connection's thread."""
        reason = "the daemon closed it"
        try:
            self._exchange()
        except (OSError, ValueError, RecursionError) as error:
            reason = str(error)
        except Exception as error:  # a receiver broke its promise: fail aloud, not silently
            logger.exception("deepinfra-sandboxd: the connection's thread failed")
            reason = f"internal error: {error}"
        self._end(reason)
        with self._lock:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in (self._sock, self._waker, self._woken):
            sock.close()

    def _exchange(self) -> None:
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        poller.register(self._sock, select.POLLIN)
        buffer, scanned = bytearray(), 0
        while self._ended is None:
            with self._lock:
                wanted = select.POLLIN | (select.POLLOUT if self._backlog else 0)
            poller.modify(self._sock, wanted)
            for fd, events in poller.poll():
                if fd == self._woken.fileno():
                    self._woken.recv(64)
                    continue
                if events & select.POLLOUT:
                    with self._lock, contextlib.suppress(BlockingIOError):
                        del self._backlog[: self._sock.send(self._backlog, socket.MSG_NOSIGNAL)]
                if not events & ~select.POLLOUT:
                    continue
                try:
                    chunk = self._sock.recv(1 << 18)
                except BlockingIOError:
                    continue
                if not chunk:
                    return  # a torn last line is no message
                buffer += chunk
                begin = 0
                while (end := buffer.find(b"\n", max(begin, scanned))) >= 0:
                    self._dispatch(json.loads(str(buffer[begin:end], "utf-8")))
                    begin = end + 1
                del buffer[:begin]
                scanned = len(buffer)
                if scanned >= MAX_LINE:
                    raise ValueError("the peer sent a line over the protocol's limit")

    def _dispatch(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise ValueError("the peer sent something that is not JSON-RPC 2.0")
        method, params = message.get("method"), message.get("params")
        if method is not None:
            params = params if isinstance(params, dict) else {}
            if method not in ("exec.output", "exec.exit"):
                self._on_notification(str(method), params)
                return
            exec_id = str(params.get("exec_id"))
            with self._lock:
                receiver = self._receivers.get(exec_id)
                if method == "exec.exit":
                    self._receivers.pop(exec_id, None)
            if receiver is not None:
                (receiver.on_exit if method == "exec.exit" else receiver.on_output)(params)
            return
        error = message.get("error")
        number = message.get("id")
        if number is None and isinstance(error, dict):  # about no request of ours: it hangs up next
            raise ValueError(f"the daemon refused what was sent: {error.get('message')}")
        with self._lock:
            future = self._pending.pop(number, None) if isinstance(number, int) else None
        if future is None:
            return  # the answer to a request that nobody waits for any more
        if isinstance(error, dict):
            future.set_exception(RpcError.from_wire(error))
        else:
            result = message.get("result")
            future.set_result(result if isinstance(result, dict) else {})

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = reason
            pending, self._pending = self._pending, {}
            receivers, self._receivers = self._receivers, {}
            self._backlog.clear()
        lost = ConnectionLost(f"the connection to the daemon ended: {reason}")
        for future in pending.values():
            future.set_exception(lost)
        for receiver in receivers.values():
            receiver.on_lost(lost)
