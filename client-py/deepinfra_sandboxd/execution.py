"""One command as its caller sees it: output as it arrives, then how it ended.

The command lives in the daemon and the sandbox; an ``Exec`` is a view of it, known by its id. When
the connection goes, whoever reads makes another one and goes on at the position reached: the reader
sees nothing but a delay. Sent again by its id, a command never runs twice.

Whoever waits fills it, its reader empties it. The window bounds what lies between: the daemon sends
no more than that beyond what was acknowledged, and only what the reader took is acknowledged. A
reader that stops holds up its own command, no other. The same thread feeds the input.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Iterator

from .errors import ConnectionLost, NoAnswer, RpcError, SandboxdError
from .rpc import Connection, Json, Tick, members_of

if TYPE_CHECKING:
    from .client import Client

TRIES = 20  # connections that are made for a command without hearing of it
PIECE = 5 << 17  # bytes of input in one message: in base64 they fit in a line


@dataclass(frozen=True)
class Chunk:
    """A piece of output: ``stream`` is "stdout" or "stderr"; its edges mean nothing."""

    stream: str
    data: bytes


@dataclass(frozen=True)
class CompletedExec:
    """How a command ended.

    ``returncode`` is the command's own, 124 when its time was up, 130 when it was cancelled, and 125
    when it failed to run or its end is unknown. ``reason``: exited, timed_out, cancelled, lost (it may
    or may not have run to its end) or failed. ``started``: "yes", "no" or "unknown". ``recreated``: the
    sandbox had stopped since the last command, so all outside /workspace is gone, or is a new one
    (``created``), so /workspace as well; ``generation`` counts its starts. ``error`` is the daemon's
    error name, and ``message`` a text for people, or empty.
    """

    exec_id: str
    returncode: int
    reason: str
    started: str
    stdout: bytes = b""
    stderr: bytes = b""
    recreated: bool = False
    created: bool = False
    generation: int = 0
    output_bytes: int = 0
    dropped_bytes: int = 0
    message: str = ""
    hint: str = ""
    error: str | None = None


class Exec:
    """A command; made by ``Client.start`` or ``attach``. One reader at a time, any thread may cancel.

    As a context manager it cancels the command when the block is left before the command's end.
    """

    def __init__(self, client: Client, params: Json, input: dict[str, bytes]) -> None:
        self.exec_id: str = params["exec_id"]
        self.end: CompletedExec | None = None  # how it ended, without output; None while it runs
        self.refusal: RpcError | None = None  # why the daemon did not take it
        self._client, self._params, self._window = client, params, int(params["window"])
        self._feeds = [_Feed(self, stream, data) for stream, data in input.items()]
        self._changed = threading.Condition(client.lock)
        self._connection: Connection | None = None
        self._instance: str | None = None  # the daemon that it was sent to
        self._accepted = self._found_again = self._told_end = self._let_go = self._nudged = False
        self._chunks: deque[tuple[Chunk, int]] = deque()  # each with the position after it
        self._received = self._acked = int(params.get("offset", 0))  # bytes, both streams together
        self._unwanted: str | None = None  # the signal that is to end it
        self._tries = 0  # connections since anything was heard

    def send(self, tick: Tick) -> None:
        """Send it, or find it again after the connection was lost; does not wait for the answer.

        *tick* may end a wait for the connection by raising. Raises as ``Client.hello``, and when that
        is the first time, nothing was run.
        """
        connection = self._client.connected(tick)
        hello = connection.hello
        with self._client.lock:
            if self._connection is connection or self.end is not None:
                return
            self._tries += 1
            if self._tries > TRIES:
                return self._finish("lost", "unknown", message=f"{TRIES} connections were lost with nothing heard")
            first = self._instance is None
            if not first:
                if hello.instance != self._instance and not self._accepted:
                    return self._finish("lost", "unknown", message="another daemon answers than the one it was sent to")
                self._params["offset"] = self._received
                if self._accepted and "key" in self._params:
                    self._params["resume"] = True
            # Noted before it is sent: whatever interrupts us here, it counts as sent.
            self._connection, self._instance = connection, hello.instance
            connection.receivers[self.exec_id] = self
            try:
                method = "exec.start" if "key" in self._params else "exec.attach"
                connection.request(method, self._params, self._on_answer)
            except SandboxdError as error:
                self._connection, self._instance = None, None if first else self._instance
                connection.receivers.pop(self.exec_id, None)
                if not isinstance(error, ConnectionLost):
                    raise  # else nothing was sent: whoever waits tries again
            if self._unwanted is not None:
                self._pass_kill_on()

    def accepted(self, timeout: float) -> None:
        """Wait until the daemon has taken it; raises ``RpcError`` when it refuses and ``NoAnswer``."""

        def answered() -> bool:  # an end that was told may be that of another command by this id
            return self._accepted or self.refusal is not None or (self.end is not None and not self._told_end)

        if not self._until(answered, time.monotonic() + timeout):
            raise NoAnswer(f"the daemon did not answer in {timeout} s; the command {self.exec_id} may be running")
        if self.refusal is not None:
            raise self.refusal

    def read(self, timeout: float | None = None) -> Chunk | None:
        """All output of one stream that is there, waiting for some; None at the end (``finished``),
        after *timeout* seconds, or when ``nudge`` was called."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._until(lambda: bool(self._chunks) or self.end is not None or self._nudged, deadline)
        with self._client.lock:
            self._nudged = False
            if not self._chunks:
                self._acknowledge(self._received)
                return None
            stream, pieces, position = self._chunks[0][0].stream, [], 0
            while self._chunks and self._chunks[0][0].stream == stream:
                chunk, position = self._chunks.popleft()
                pieces.append(chunk.data)
            self._acknowledge(position)
            return Chunk(stream, b"".join(pieces))

    def __iter__(self) -> Iterator[Chunk]:
        """Output as it arrives, to the end of the command."""
        while (chunk := self.read()) is not None or not self.finished:
            if chunk is not None:
                yield chunk

    @property
    def finished(self) -> bool:
        """True when the command has ended and all its output was read."""
        return self.end is not None and not self._chunks

    def wait(self, timeout: float | None = None) -> CompletedExec:
        """Wait for the end, collecting the output not read before. After *timeout* seconds raises
        ``NoAnswer``; the command goes on, and what was collected is lost."""
        deadline = None if timeout is None else time.monotonic() + timeout
        taken: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        while not self.finished:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if (chunk := self.read(left)) is not None:
                taken[chunk.stream].append(chunk.data)
            elif left == 0.0 and not self.finished:
                raise NoAnswer(f"command {self.exec_id} still runs after {timeout} s")
        assert self.end is not None
        return replace(self.end, stdout=b"".join(taken["stdout"]), stderr=b"".join(taken["stderr"]))

    def cancel(self, signal: str = "KILL", timeout: float | None = 30.0) -> bool:
        """End this command (INT, TERM or KILL) and nothing else; True when the daemon confirms that
        it is gone. Raises as ``Client.call``."""
        params = {"exec_id": self.exec_id, "signal": signal}
        return self._client.call("exec.cancel", params, timeout).get("confirmed") is True

    def kill(self, signal: str = "KILL") -> bool:
        """Ask for the command's end without waiting; never raises. False when there is nobody to ask:
        then whoever waits for the command asks as soon as there is."""
        with self._client.lock:
            self._unwanted = signal
            if self._instance is None:
                self._finish("cancelled", "no", returncode=130, message="it was not sent yet")
            return self._pass_kill_on()

    def _pass_kill_on(self) -> bool:
        params = {"exec_id": self.exec_id, "signal": self._unwanted}
        return self._connection is not None and self._connection.tell("exec.cancel", params, lambda _: None)

    def nudge(self) -> None:
        """Make a ``read`` that waits, or else the next one, return."""
        with self._client.lock:
            self._nudged = True
            self._wake()

    def __enter__(self) -> Exec:
        return self

    def __exit__(self, *_: object) -> None:
        if self.end is None and self._instance is not None and not self.kill():
            with contextlib.suppress(SandboxdError):  # what interrupted the block may have cost the connection
                self.cancel(timeout=5)

    def _until(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until *ready*, finding the command again as often as need be; False at the deadline."""

        def tick() -> None:
            if ready() or (deadline is not None and time.monotonic() >= deadline):
                raise _Enough

        while True:
            with self._client.lock:
                if self._connection is not None:
                    self._connection.wait(self._changed, ready, deadline)
            try:
                tick()
                self.send(tick)
            except _Enough:
                return ready()
            except SandboxdError as error:
                end = ("failed", "no") if self._instance is None else ("lost", "unknown")
                with self._client.lock:
                    self._finish(*end, message=str(error), hint=error.hint)

    # -- called under the client's lock by whoever reads the connection: nothing below waits

    def on_output(self, params: Json, raw: memoryview) -> None:
        if "raw" in params:
            data = bytes(raw)
        elif "data" in params:
            data = params["data"].encode("utf-8", "surrogatepass")
        else:
            data = base64.b64decode(params["data_b64"])
        position = params.get("pos", self._received)
        data = data[max(0, self._received - position) :]  # what was sent twice is taken once; a gap is what was dropped
        self._received, self._tries = max(self._received, position) + len(data), 0
        if data:
            self._chunks.append((Chunk(params["stream"], data), self._received))
            self._wake()

    def on_exit(self, params: Json) -> None:
        error = params.get("error") or {}
        if error.get("name") == "shutting_down":
            return  # it was not run yet: the next daemon does it
        self._received = max(self._received, params.get("output_bytes", 0))
        self._told_end, self._let_go = True, False
        code = 125 if params["reason"] in ("lost", "failed") else params.get("returncode")
        own = {"returncode": 125 if code is None else code, "hint": error.get("hint", ""), "error": error.get("name")}
        self._finish(**members_of(CompletedExec, params) | own)
        self._acknowledge(self._received)  # whoever has read all of it may not read again

    def on_lost(self) -> None:
        self._changed.notify_all()

    def _on_answer(self, answer: Json | SandboxdError) -> None:
        if isinstance(answer, RpcError):
            if answer.name == "shutting_down":
                return  # the connection ends next
            known = self._accepted or answer.name == "outcome_unknown"
            self.refusal = None if known else answer
            end = ("lost", "unknown") if known else ("failed", "no")
            self._finish(*end, message=str(answer), hint=answer.hint, error=answer.name)
        elif not isinstance(answer, SandboxdError) and self._connection is not None:
            self._found_again, self._accepted, self._tries = self._accepted, True, 0
            self._changed.notify_all()
            for feed in self._feeds:
                feed.go_on(self._connection, ask=self._found_again)

    def _finish(self, reason: str, started: str, **more: Any) -> None:
        if self.end is None:
            end: Json = {"exec_id": self.exec_id, "returncode": 125, "reason": reason, "started": started}
            self.end = CompletedExec(**end | more)
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._connection is not None:
            self._connection.wake()

    def _acknowledge(self, position: int) -> None:
        """All up to *position* was taken: said once a quarter of the window, and at the end, so that the sandbox forgets it."""
        last = self.finished and self._told_end and not self._let_go
        if last or (self.end is None and position - self._acked >= self._window // 4):
            self._acked, self._let_go = position, last
            if self._connection is not None:  # that it is lost is noticed by whoever waits
                self._connection.tell("exec.ack", {"exec_id": self.exec_id, "offset": position})


class _Feed:
    """Input (*stream* "stdin" or "script") that goes in pieces, at offsets: none is taken in twice."""

    def __init__(self, owner: Exec, stream: str, data: bytes) -> None:
        self._owner, self._stream, self._data = owner, stream, data
        self._offset = 0

    def go_on(self, connection: Connection, *, ask: bool) -> None:
        """Send the next piece, and all others after it; or first *ask* a new daemon what it has."""
        begin, end = self._offset, self._offset + PIECE
        params: Json = {"exec_id": self._owner.exec_id, "stream": self._stream, "offset": 0}
        if not ask:
            piece = base64.b64encode(self._data[begin:end]).decode()
            params |= {"offset": begin, "data_b64": piece, "eof": end >= len(self._data)}

        def answered(answer: Json | SandboxdError) -> None:
            if not isinstance(answer, SandboxdError):
                self._offset = answer["accepted"]
                if answer["state"] == "open":
                    self.go_on(connection, ask=False)

        connection.tell("exec.stdin", params, answered)  # if it is lost, it goes on with the next one


class _Enough(Exception):
    """Ends a wait for the connection."""


def bytes_value(value: str | bytes) -> str | dict[str, str]:
    """The protocol's value for what Linux has bytes for: a string, or base64 where it is no UTF-8."""
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            value = value.encode("utf-8", "surrogateescape")
    return {"b64": base64.b64encode(value).decode("ascii")}
