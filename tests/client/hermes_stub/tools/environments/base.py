"""Stub of hermes's ``BaseEnvironment``: the wait loop and session handling a backend has to live with.

It behaves as hermes does where a backend can tell, and it is stricter: whatever a backend must not do
is written down in ``violations``, which the tests require to stay empty.
"""

from __future__ import annotations

import codecs
import contextlib
import contextvars
import os
import select
import shlex
import threading
import time
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable

from tools.interrupt import consume_yield, is_interrupted, is_thread_interrupted

violations: list[str] = []

BACKSTOP_GRACE = 2.0
DRAIN_JOIN = 2.0
STATE = "export -p; declare -f; alias -p"  # what is kept from one command to the next
_activity = threading.local()


class FileFetchError(RuntimeError):
    pass


class EnvironmentConnectionError(RuntimeError):
    def __init__(self, reason: str, *, retry_hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_hint = retry_hint
        if "timeout" in reason.lower():
            violations.append(f"an infrastructure error that reads as a time-out: {reason}")


def set_activity_callback(callback: Callable[[str], None] | None) -> None:
    _activity.callback = callback


def touch_activity_if_due(state: dict[str, float], label: str) -> None:
    now = time.monotonic()
    callback = getattr(_activity, "callback", None)
    if callback is not None and now - state["last_touch"] >= state.get("interval", 10.0):
        state["last_touch"] = now
        callback(label)


class _Capture:
    """Text drained from one handle, and what the checks need to know about the draining."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.end_of_file = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def _drain(handle: Any, capture: _Capture, stop: threading.Event) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    fd = handle.stdout.fileno()
    idle_rounds = 0
    while not stop.is_set():
        try:
            ready, _, _ = select.select([fd], [], [], 0.1)
            data = os.read(fd, 4096) if ready else None
        except (OSError, ValueError):
            break
        if data is None:
            begun = time.monotonic()
            code = handle.poll()
            if time.monotonic() - begun > 0.5:
                violations.append("poll() made the drain thread wait")
            if code is not None:
                idle_rounds += 1
                if idle_rounds == 3:
                    break
            continue
        idle_rounds = 0
        if not data:
            capture.end_of_file = True
            break
        capture.pieces.append(decoder.decode(data))
    capture.pieces.append(decoder.decode(b"", final=True))


def _start_drain(handle: Any, capture: _Capture) -> tuple[threading.Thread, threading.Event]:
    stop = threading.Event()
    thread = threading.Thread(target=_drain, args=(handle, capture, stop), daemon=True)
    thread.start()
    return thread, stop


def _check_handle(handle: Any) -> None:
    if getattr(handle, "pid", None):
        violations.append("the handle has a pid: hermes would kill that process on the host")
    fd = handle.stdout.fileno()
    if not isinstance(fd, int) or fd < 0:
        violations.append("the handle's stdout has no real descriptor")
    for name in ("poll", "kill", "wait"):
        if not callable(getattr(handle, name, None)):
            violations.append(f"the handle has no {name}()")


class BaseEnvironment(ABC):
    _stdin_mode = "pipe"
    _snapshot_timeout = 30

    def __init__(self, cwd: str, timeout: int, env: dict[str, str] | None = None) -> None:
        self.cwd = cwd
        self.timeout = timeout
        self.env = env or {}
        session = uuid.uuid4().hex[:12]
        self._snapshot_path = f"{self.get_temp_dir()}/hermes-snap-{session}.sh"
        self._cwd_marker = f"__HERMES_CWD_{session}__"
        self._snapshot_ready = self._prefer_nonlogin = False
        self._recreated_notice_pending = False

    def get_temp_dir(self) -> str:
        return "/tmp"

    @abstractmethod
    def cleanup(self) -> None:
        ...

    def _run_bash(
        self,
        cmd_string: str,
        *,
        login: bool = False,
        timeout: int = 120,
        stdin_data: str | None = None,
    ) -> Any:
        raise NotImplementedError

    def _before_execute(self) -> None:
        """Hook in front of each command, in the thread of the tool and outside of its time-out."""

    def fetch_file(self, remote_path: str, local_dest: Path, *, max_bytes: int) -> None:
        raise NotImplementedError  # hermes's own goes by base64 over exec

    def fetch_realpath(self, remote_path: str) -> str | None:
        raise NotImplementedError

    def _mark_recreated(self) -> None:
        self._recreated_notice_pending = True

    def _marker_line(self) -> str:
        return f"printf '\\n{self._cwd_marker}%s{self._cwd_marker}\\n' \"$(pwd -P)\""

    def _save(self, what: str) -> str:
        """Shell lines that put what these commands print into the snapshot, atomically."""
        temporary = f"{self._snapshot_path}.$$.tmp"
        return f"{{ {what}; }} > {temporary} 2>/dev/null && mv -f {temporary} {self._snapshot_path}"

    def init_session(self) -> None:
        save, cwd = self._save(STATE), shlex.quote(self.cwd)
        script = f"{save} || exit 1\ncd -- {cwd} 2>/dev/null\n{self._marker_line()}"
        self._snapshot_ready = False
        with contextlib.suppress(Exception):
            handle = self._spawn(script, login=True, timeout=self._snapshot_timeout)
            result = self._wait_for_process(handle, self._snapshot_timeout)
            self._snapshot_ready = result["returncode"] == 0
            if self._snapshot_ready:
                self._update_cwd(result)
        if not self._snapshot_ready:  # perhaps no login shell works here: then the commands get others
            self._prefer_nonlogin = False
            with contextlib.suppress(Exception):
                probe = self._spawn("true", login=False, timeout=15)
                self._prefer_nonlogin = self._wait_for_process(probe, 15)["returncode"] == 0

    def _wrap(self, command: str, cwd: str) -> str:
        lines = []
        if self._snapshot_ready:
            lines.append(f"source {self._snapshot_path} >/dev/null 2>&1 || true")
        lines += [
            f"cd -- {shlex.quote(cwd)} || exit 126",
            f"eval {shlex.quote(command)}",
            "__code=$?",
        ]
        if self._snapshot_ready:
            lines.append(f"{self._save(STATE)} || true")
        return "\n".join([*lines, self._marker_line(), "exit $__code"])

    def _spawn(self, script: str, **options: Any) -> Any:
        """Call the backend and check that it gives the handle at once and does not raise."""
        begun = time.monotonic()
        try:
            handle = self._run_bash(script, **options)
        except Exception as error:
            violations.append(f"_run_bash raised {error!r}")
            raise
        if time.monotonic() - begun > 0.5:
            violations.append("_run_bash did not return at once")
        _check_handle(handle)
        return handle

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: int | None = None,
        stdin_data: str | None = None,
        rewrite_compound_background: bool = True,
        bounded_capture: bool = False,
        yield_handler: Callable[[Any, str], dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        self._before_execute()
        limit = timeout or self.timeout
        script = self._wrap(command, cwd or self.cwd)
        login, caller = not self._snapshot_ready and not self._prefer_nonlogin, threading.get_ident()
        callback = getattr(_activity, "callback", None)
        box: dict[str, Any] = {}

        def work() -> None:
            set_activity_callback(callback)
            try:
                handle = self._spawn(script, login=login, timeout=limit, stdin_data=stdin_data)
                box["handle"] = handle
                box["result"] = self._wait_for_process(handle, limit, watch_thread=caller, yield_handler=yield_handler)
            except BaseException as error:
                box["error"] = error

        context = contextvars.copy_context()
        worker = threading.Thread(target=context.run, args=(work,), daemon=True)
        worker.start()
        worker.join(limit + BACKSTOP_GRACE)
        if worker.is_alive():
            violations.append("hermes's backstop had to end a wait")
            if "handle" in box:
                box["handle"].kill()
            result = {"output": f"[Command timed out after {limit}s]", "returncode": 124}
        elif "error" in box:
            raise box["error"]
        else:
            result = box["result"]
        self._update_cwd(result)
        if self._recreated_notice_pending:
            self._recreated_notice_pending = False
            result["environment_recreated"] = True
        return result

    def _wait_for_process(
        self,
        handle: Any,
        timeout: float,
        *,
        watch_thread: int | None = None,
        yield_handler: Callable[[Any, str], dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        capture = _Capture()
        drain, stop = _start_drain(handle, capture)
        deadline = time.monotonic() + timeout
        activity = {"last_touch": time.monotonic(), "interval": 10.0}
        pause = 0.005
        while handle.poll() is None:
            if is_interrupted() or is_thread_interrupted(watch_thread):
                return self._killed(handle, drain, capture, "[Command interrupted]", 130)
            if yield_handler is not None and consume_yield(watch_thread):
                stop.set()
                drain.join(1)
                taken = None
                with contextlib.suppress(Exception):  # a failed one is none
                    taken = yield_handler(handle, capture.text)
                if taken is not None:
                    return taken
                drain, stop = _start_drain(handle, capture)
            if time.monotonic() > deadline:
                text = f"[Command timed out after {timeout}s]"
                return self._killed(handle, drain, capture, text, 124)
            touch_activity_if_due(activity, "terminal command running")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)
        if handle.returncode is None:
            violations.append("poll() told an exit that returncode does not know")
        drain.join(DRAIN_JOIN)
        if drain.is_alive():
            violations.append("the drain did not end within 2 s of the exit: output would be lost")
        elif not capture.end_of_file:
            violations.append("the exit was told before the pipe was closed")
        handle.stdout.close()
        return {"output": capture.text, "returncode": handle.returncode}

    def _killed(self, handle: Any, drain: threading.Thread, capture: _Capture, text: str, code: int) -> dict[str, Any]:
        begun = time.monotonic()
        for _ in range(2):  # hermes may call it twice, from two threads
            try:
                handle.kill()
            except BaseException as error:
                violations.append(f"kill() raised {error!r}: hermes would run the command again")
        if time.monotonic() - begun > 0.02:
            violations.append("kill() waited")
        drain.join(DRAIN_JOIN)
        if drain.is_alive():
            violations.append("the pipe was not closed within 2 s of kill(): a thread leaks")
        if handle.poll() is None:
            handle.wait(0.2)
        return {"output": f"{capture.text}\n{text}", "returncode": code}

    def _update_cwd(self, result: dict[str, Any]) -> None:
        output, marker = result.get("output", ""), self._cwd_marker
        end = output.rfind(marker)
        begin = output.rfind(marker, 0, max(end, 0))
        if begin < 0:
            return
        self.cwd = result["cwd"] = output[begin + len(marker) : end]
        result["cwd_observed"] = True
        result["output"] = output[: max(begin - 1, 0)] + output[end + len(marker) + 1 :]
        return

    def __del__(self) -> None:
        try:
            self.cleanup()
        except Exception:
            pass
