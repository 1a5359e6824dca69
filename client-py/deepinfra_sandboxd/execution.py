"""One command as its caller sees it: output as it arrives, then how it ended.

An ``Exec`` is filled by the connection's thread and emptied by its reader. Between them lies a
buffer that the window bounds: the daemon sends no more than that beyond what was acknowledged, and
only what the reader took is acknowledged. A reader that stops holds up its own command, no other.
"""

from __future__ import annotations

import base64
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Iterator

from .errors import ConnectionLost, NoAnswer, RpcError, SandboxdError
from .rpc import Connection, Json


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
    sandbox had stopped since the last command, so all outside /workspace is gone; ``generation`` counts
    its starts. ``error`` is the daemon's error name, and ``message`` a text for people, or empty.
    """

    exec_id: str
    returncode: int
    reason: str
    started: str
    stdout: bytes = b""
    stderr: bytes = b""
    recreated: bool = False
    generation: int = 0
    output_bytes: int = 0
    dropped_bytes: int = 0
    message: str = ""
    hint: str = ""
    error: str | None = None


class Exec:
    """A command; made by ``Client.start``. One reader at a time, any thread may cancel."""

    def __init__(self, connection: Connection, params: Json) -> None:
        self.exec_id: str = params["exec_id"]
        self._connection, self._params = connection, params
        self._window: int = params["window"]
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._offsets = {"stdout": 0, "stderr": 0}
        self._received = self._taken = self._acked = 0  # bytes, all streams together
        self._end: CompletedExec | None = None
        self._discarding = self._nudged = False

    def send(self) -> Future[Json]:
        """Send it; the future is the daemon's acceptance. Raises as ``Connection.request``, and then
        nothing was run."""
        self._connection.attach(self.exec_id, self)
        try:
            answer = self._connection.request("exec.start", self._params)
        except BaseException:
            self._connection.detach(self.exec_id)
            raise
        answer.add_done_callback(self._on_answer)
        return answer

    def read(self, timeout: float | None = None) -> Chunk | None:
        """All output of one stream that is there, waiting for some; None at the end (``finished``),
        after *timeout* seconds, or when ``nudge`` was called."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._chunks and self._end is None and not self._nudged:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            self._nudged = False
            if not self._chunks:
                return None
            stream, pieces = self._chunks[0].stream, []
            while self._chunks and self._chunks[0].stream == stream:
                pieces.append(self._chunks.popleft().data)
            data = b"".join(pieces) if len(pieces) > 1 else pieces[0]
            offset = self._consume(len(data))
        self._acknowledge(offset)
        return Chunk(stream, data)

    def __iter__(self) -> Iterator[Chunk]:
        """Output as it arrives, to the end of the command."""
        while (chunk := self.read()) is not None or not self.finished:
            if chunk is not None:
                yield chunk

    @property
    def finished(self) -> bool:
        """True when the command has ended and all its output was read."""
        return self._end is not None and not self._chunks

    @property
    def end(self) -> CompletedExec | None:
        """How it ended (without output), or None while it runs."""
        return self._end

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
        assert self._end is not None
        return replace(
            self._end, stdout=b"".join(taken["stdout"]), stderr=b"".join(taken["stderr"])
        )

    def cancel(self, signal: str = "KILL", timeout: float | None = 30.0) -> bool:
        """End this command (INT, TERM or KILL) and nothing else; True when the daemon confirms that
        it is gone. Raises ``RpcError``, ``ConnectionLost`` or, after *timeout* seconds, ``NoAnswer``.
        """
        answer = self._connection.request(
            "exec.cancel", {"exec_id": self.exec_id, "signal": signal}
        )
        try:
            return answer.result(timeout).get("confirmed") is True
        except TimeoutError:
            raise NoAnswer(f"cancelling {self.exec_id} was not answered in {timeout} s") from None

    def kill(self) -> None:
        """Ask for the command's end without waiting; never raises."""
        try:
            self._connection.request("exec.cancel", {"exec_id": self.exec_id})
        except SandboxdError:
            pass  # with the connection the command is out of our reach

    def nudge(self) -> None:
        """Make a ``read`` that waits, or else the next one, return."""
        with self._changed:
            self._nudged = True
            self._changed.notify_all()

    def discard(self) -> None:
        """Drop all output from now on; the daemon is not held up by it."""
        with self._changed:
            self._discarding = True
            self._chunks.clear()
            offset = self._consume(self._received - self._taken)
        self._acknowledge(offset)

    # -- what the connection's thread calls: nothing below waits

    def on_output(self, params: Json) -> None:
        stream = "stderr" if params.get("stream") == "stderr" else "stdout"
        if "data_b64" in params:
            data = base64.b64decode(params["data_b64"])
        else:
            data = str(params.get("data", "")).encode("utf-8", "surrogatepass")
        offset: int | None = None
        with self._changed:
            # Offsets make a repetition visible; a gap is what the daemon had to drop.
            begin = int(params.get("offset", self._offsets[stream]))
            data = data[max(0, self._offsets[stream] - begin) :]
            if not data or self._end is not None:
                return
            self._offsets[stream] = max(begin, self._offsets[stream]) + len(data)
            self._received += len(data)
            overrun = self._received - self._acked > self._window
            if self._discarding or overrun:
                offset = self._consume(len(data))
            else:
                self._chunks.append(Chunk(stream, data))
                self._changed.notify_all()
        if overrun:  # memory stays bounded even with a peer that breaks the rule
            self._finish("lost", "unknown", message="the daemon sent more than the window allows")
            self.kill()
        self._acknowledge(offset)

    def on_exit(self, params: Json) -> None:
        error: Any = params.get("error")
        error = error if isinstance(error, dict) else {}
        reason, code = str(params.get("reason", "lost")), params.get("returncode")
        if reason in ("lost", "failed") or not isinstance(code, int):
            code = 125
        self._finish(
            reason,
            str(params.get("started", "unknown")),
            returncode=code,
            recreated=params.get("recreated") is True,
            generation=int(params.get("generation", 0)),
            output_bytes=int(params.get("output_bytes", 0)),
            dropped_bytes=int(params.get("dropped_bytes", 0)),
            message=str(params.get("message", "")),
            hint=str(error.get("hint", "")),
            error=error.get("name"),
        )

    def on_lost(self, error: ConnectionLost) -> None:
        self._finish("lost", "unknown", message=str(error), hint=error.hint)

    def _on_answer(self, answer: Future[Json]) -> None:
        error = answer.exception()
        if not isinstance(error, RpcError):
            return  # accepted; or the connection ended, which on_lost reports
        self._connection.detach(self.exec_id)
        unknown = error.name == "outcome_unknown"
        self._finish(
            "lost" if unknown else "failed",
            "unknown" if unknown else "no",
            message=str(error),
            hint=error.hint,
            error=error.name,
        )

    def _finish(self, reason: str, started: str, *, returncode: int = 125, **rest: Any) -> None:
        with self._changed:
            if self._end is None:
                self._end = CompletedExec(self.exec_id, returncode, reason, started, **rest)
                self._changed.notify_all()

    def _consume(self, count: int) -> int | None:
        """Count *count* bytes as taken; the offset to acknowledge, once a quarter of the window."""
        self._taken += count
        if self._taken - self._acked < self._window // 4:
            return None
        self._acked = self._taken
        return self._taken

    def _acknowledge(self, offset: int | None) -> None:
        if offset is not None and self._end is None:
            try:
                self._connection.notify("exec.ack", {"exec_id": self.exec_id, "offset": offset})
            except SandboxdError:
                pass  # a lost connection reports itself
