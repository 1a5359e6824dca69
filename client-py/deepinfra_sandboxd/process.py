"""The process handle that hermes waits on: a pipe fed from a command in the sandbox.

A ``CommandHandle`` owns the write end of its pipe and one daemon thread that relays output, until
the command has ended. The read end is one file object and belongs to whoever reads it. Nothing here
raises into hermes: what cannot be done becomes exit code 125 with a text. There is deliberately no
``pid``: hermes would kill that process on the host.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from typing import Callable

from .errors import SandboxdError
from .execution import CompletedExec, Exec
from .rpc import LOOK

logger = logging.getLogger(__name__)

TAIL = 0.03  # seconds that output may still arrive in after a kill
# Seconds that a killed command is attended to: its output must not hold it up, nor a lost daemon save it.
LAST_LOOK = 60.0
LINGER = 1.0  # longest wait inside one poll(), seconds


def infrastructure(text: str, hint: str = "") -> str:
    """The wording of everything that is no word of the command's own."""
    hint = f"\n[{hint}]" if hint else ""
    return f"[deepinfra-sandbox: infrastructure error, not a command failure: {text}]{hint}"


class CommandHandle:
    """A running command. *prepare* makes it; it is sent on our thread, so that making a handle never waits.

    *limit* is hermes's time-out in seconds. The thread that makes the handle may wait inside
    ``poll`` for the command's end, as long as *interrupted* is false, which is most of what makes a
    short command fast; all other threads get their answer at once. *signal* is what ``kill`` sends.
    *quiet*: write no text of ours.
    """

    def __init__(
        self,
        prepare: Callable[[], Exec],
        *,
        limit: float,
        interrupted: Callable[[], bool],
        signal: str = "KILL",
        quiet: bool = False,
    ) -> None:
        read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self.stdout = open(read_fd, encoding="utf-8", errors="replace")
        self.end: CompletedExec | None = None  # how it ended; None while it runs and when killed
        self._prepare, self._interrupted, self._signal, self._quiet = prepare, interrupted, signal, quiet
        self._waiter, self._deadline = threading.get_ident(), time.monotonic() + limit
        self._lock = threading.Lock()
        self._exec: Exec | None = None
        self._killed: float | None = None  # when, monotonic
        self._code = 125
        self._done = threading.Event()
        self._wrote = False
        try:
            threading.Thread(target=self._run, name="deepinfra-sandboxd-out", daemon=True).start()
        except RuntimeError as error:  # no threads left, or the interpreter is shutting down
            self._finish(125, infrastructure(f"{error}; nothing was run"))

    @property
    def returncode(self) -> int | None:
        return self._code if self._done.is_set() else None

    def poll(self) -> int | None:
        """The exit code once the last byte is in the pipe and the pipe is closed, else None."""
        if threading.get_ident() == self._waiter:
            until = min(time.monotonic() + LINGER, self._deadline)
            while not self._done.is_set() and not self._interrupted():
                left = until - time.monotonic()
                if left <= 0 or self._done.wait(min(left, LOOK)):
                    break
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; after *timeout* seconds raises ``TimeoutError``."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the command still runs after {timeout} s")
        return self._code

    def kill(self) -> None:
        """End the command. Idempotent, waits for nothing, never raises; the end of the pipe and the
        code follow within some 30 ms, whatever the daemon does."""
        with self._lock:
            if self._killed is not None or self._done.is_set():
                return
            self._killed = time.monotonic()
            running = self._exec
        if running is not None:
            running.kill(self._signal)
            running.nudge()

    def _run(self) -> None:
        code, notice = 125, ""
        try:
            code, notice = self._relay()
        except _Killed:
            code = 130
        except Exception as error:
            logger.exception("deepinfra-sandbox: relaying a command's output failed")
            notice = infrastructure(f"{type(error).__name__}: {error}; the outcome is unknown")
        self._finish(code, notice)
        if self._killed is not None and self._exec is not None:
            until = time.monotonic() + LAST_LOOK
            while not self._exec.finished and (left := until - time.monotonic()) > 0:
                self._exec.read(left)  # and drop it

    def _tick(self) -> None:
        if self._killed is not None:
            raise _Killed

    def _relay(self) -> tuple[int, str]:
        """Move output to the pipe until the end; the exit code and a text of ours."""
        try:
            running = self._prepare()
            self._tick()
            running.send(self._tick)
        except (SandboxdError, ValueError) as error:  # ValueError: text that no encoding can send
            hint = getattr(error, "hint", "")
            self.end = CompletedExec("", 125, "failed", "no", message=str(error), hint=hint)
            return 125, describe(self.end)
        with self._lock:
            self._exec = running
        if self._killed is not None:
            running.kill(self._signal)
        while not running.finished:
            left = None
            if self._killed is not None and (left := self._killed + TAIL - time.monotonic()) <= 0:
                raise _Killed
            if (chunk := running.read(left)) is not None:
                self._write(chunk.data)
        self.end = running.end
        assert self.end is not None
        return self.end.returncode, "" if self._killed is not None else describe(self.end)

    def _write(self, data: bytes) -> None:
        """Write all of *data*, unless the reader is gone or a kill's grace is over."""
        view, room = memoryview(data), select.poll()
        room.register(self._write_fd, select.POLLOUT)
        while view and not (self._killed is not None and time.monotonic() > self._killed + TAIL):
            try:
                view = view[os.write(self._write_fd, view) :]
                self._wrote = True
            except BlockingIOError:
                room.poll(1000 * LOOK)
            except OSError:
                return  # the reader is gone: the rest is dropped, the command goes on

    def _finish(self, code: int, notice: str) -> None:
        try:
            if notice and not self._quiet:
                self._write((("\n" if self._wrote else "") + notice + "\n").encode())
        finally:
            os.close(self._write_fd)
            self._code = code
            self._done.set()


class _Killed(Exception):
    """The command is to end; nobody waits for its output any more."""


def describe(end: CompletedExec) -> str:
    """What to tell about an end that is not the command's own exit; empty for one that is."""
    text = end.message or end.reason
    if end.reason == "exited":
        return ""
    if end.reason == "timed_out":
        return "[Command timed out in the sandbox]"
    if end.reason == "cancelled":
        return f"[Command cancelled: {text}]"
    if end.started == "no":
        return infrastructure(f"{text}; nothing was run", end.hint)
    text = f"{text}; the command may have run to its end or not, and was not run again"
    return infrastructure(text, end.hint)
