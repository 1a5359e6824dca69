"""A daemon whose clocks go as a test says."""

from __future__ import annotations

import pathlib
import struct

from support.daemon import Daemon
from support.kill_points import build_preload


class Clocks:
    """Those of one daemon, from its next start on: as the machine's, until they are moved. Several moves do not add up."""

    def __init__(self, tmp_path: pathlib.Path, daemon: Daemon) -> None:
        self._file = tmp_path / "clocks"
        self._move(0, 0, 0)
        daemon.environment |= {"LD_PRELOAD": str(build_preload(tmp_path, "shifted_clock")), "SHIFTED_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Somebody sets the clock, so much ahead or back."""
        self._move(seconds, 0, 0)

    def sleep(self, seconds: int) -> None:
        """The machine slept for so long."""
        self._move(seconds, seconds, 0)

    def go_on(self, seconds: int) -> None:
        """So much time has passed. A pause that has begun ends no earlier for it, but then it is this much later."""
        self._move(seconds, seconds, seconds)

    def _move(self, realtime: int, boottime: int, monotonic: int) -> None:
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=qqq", realtime, boottime, monotonic))
