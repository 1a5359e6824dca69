"""Verbs of the command line that are still at work while a test looks at them."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.daemon import Daemon

LIMIT_S = 30.0


@contextmanager
def running(daemon: Daemon, *arguments: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A verb that is still at work; ended with the block, if it has not ended itself."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    with subprocess.Popen(daemon.command(*arguments), env=daemon.environment, **streams) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def press_until_it_leaves(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C again and again: what comes at the heels of the first one counts as the same, a later one does not."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None:
        assert time.monotonic() < deadline, "it does not leave"
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)


class Terminal:
    """A verb on a terminal of its own."""

    def __init__(self, daemon: Daemon, *arguments: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(daemon.command(*arguments), env={**daemon.environment, "TERM": "xterm", **environment},
                                        stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.seen = b""

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def close(self) -> None:
        """As a window is closed; without the SIGHUP that often comes first."""
        os.close(self._master)

    def until(self, wanted: bytes) -> None:
        deadline = time.monotonic() + LIMIT_S
        while wanted not in self.seen:
            assert self._more(deadline), f"it ended without {wanted!r}: {self.seen!r}"

    def end(self) -> tuple[int, bytes]:
        """Its exit code and all it has written."""
        deadline = time.monotonic() + LIMIT_S
        while self._more(deadline):
            pass
        self.close()
        return self.process.wait(LIMIT_S), self.seen

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"nothing more within {LIMIT_S} s: {self.seen!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the other side open
            return False
        self.seen += data
        return bool(data)
