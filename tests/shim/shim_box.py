"""One sandbox with the shim in it.

The binary is $DEEPINFRA_SHIM, else the build tree's; the emulator $DEEP_SANDS_EMULATOR, else the build tree's.
"""

from __future__ import annotations

import base64
import itertools
import os
import pathlib
import random
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(REPOSITORY / "tests" / "e2e"))

from shim_frames import Transcript, parse  # noqa: E402
from support.emulator import Emulator, Stream, wait_until  # noqa: E402

HOME = "/workspace/.deepinfra-sandboxd"
PATH = HOME + "/shim-test"


def shim_binary() -> bytes:
    named = os.environ.get("DEEPINFRA_SHIM")
    return (pathlib.Path(named) if named else REPOSITORY / "build" / "daemon" / "shim" / "deepinfra-shim").read_bytes()


class Box:
    """One sandbox with the shim in it."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.id = emulator.create_running()
        self._numbers = itertools.count(1)
        self.install()

    def install(self) -> Transcript:
        assert self.emulator.put(self.id, PATH + ".new", shim_binary()).status == 200
        script = 'chmod 755 "$1" && mv -f "$1" "$2" && exec "$2" probe'
        return parse(self.emulator.exec(self.id, "/bin/sh", "-c", script, "sh", PATH + ".new", PATH).text())

    def new_id(self) -> str:
        return f"exec-{next(self._numbers)}"

    def call(self, *words: str, timeout: float = 120) -> Transcript:
        answer = self.emulator.exec(self.id, PATH, *words, timeout_seconds=timeout)
        assert answer.text("stderr") == "", answer
        made = parse(answer.text())
        assert answer.terminal == {"returncode": 2 if made.frames and made.last.name == "error" else 0}, answer
        return made

    def run(self, *argv: str, id: str = "", options: tuple[str, ...] = ()) -> Transcript:
        return self.call("run", id or self.new_id(), *options, "--raw", "--", *argv)

    def sh(self, script: str, id: str = "", options: tuple[str, ...] = ()) -> Transcript:
        return self.run("bash", "-c", script, id=id, options=options)

    def follow(self, id: str, start: int = 0, *options: str) -> Transcript:
        return self.call("follow", id, str(start), *options)

    def open(self, *words: str) -> Stream:
        """A call whose answer is read piece by piece."""
        return self.emulator.open_exec(self.id, PATH, *words, timeout_seconds=300)

    def ps(self) -> dict[str, dict[str, str]]:
        return {frame["id"]: frame.fields for frame in self.call("ps").named("exec")}

    def plain(self, script: str) -> str:
        """What a command of the platform's own exec prints."""
        return self.emulator.sh(self.id, script, timeout_seconds=60).text()

    def processes(self) -> list[str]:
        """Command lines of what lives, runners and the init excepted."""
        lines = [one["cmdline"].strip() for one in self.emulator.processes(self.id)]
        return [line for line in lines if line and not line.startswith("deepinfrad")]

    def until_processes(self, wanted: int, matching: str = "") -> None:
        wait_until(lambda: sum(matching in line for line in self.processes()) == wanted, f"{wanted} processes {matching}: {self.processes()}")

    def until_started(self, id: str) -> None:
        wait_until(lambda: self.ps().get(id, {}).get("state") == "running", f"{id} runs")


def read_text(stream: Stream, stop_after: int | None = None, until: str | None = None) -> str:
    """The stdout of an open call: whole, or at least `stop_after` characters of it, or up to where `until` is in it."""
    text = ""
    for line in stream:
        text += line.get("stdout", "")
        if (stop_after is not None and len(text) >= stop_after) or (until is not None and until in text):
            break
    return text


def read_acknowledging(box: Box, stream: Stream) -> str:
    """The whole stdout of an open call of `x`; what it says to be waiting is acknowledged."""
    text, acknowledged = "", 0
    for line in stream:
        text += line.get("stdout", "")
        for pos in re.findall(r"^full pos=(\d+) ", line.get("stdout", ""), re.M):
            if int(pos) > acknowledged:
                acknowledged = int(pos)
                box.call("ack", "x", pos)
    return text


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def put_data(box: Box, size: int, seed: int) -> bytes:
    """Random bytes with stretches of text, in /workspace/data."""
    chance = random.Random(seed)
    parts: list[bytes] = []
    while sum(map(len, parts)) < size:
        n = chance.randint(1, 60000)
        parts.append(chance.randbytes(n) if chance.random() < 0.5 else (b"plain text, line %d\n" % n) * (n // 20))
    data = b"".join(parts)[:size]
    assert box.emulator.put(box.id, "/workspace/data", data).status == 200
    return data


class Collector:
    """Follows one command through cuts, as the daemon would."""

    def __init__(self, box: Box, id: str) -> None:
        self.box, self.id = box, id
        self.parts: list[bytes] = []
        self.pos = 0
        self.calls = 0
        self.last: Transcript | None = None

    def take(self, text: str, cut: bool) -> Transcript | None:
        """What was received of one call; None where not even the first frame came."""
        self.calls += 1
        if "\n" not in text:
            return None
        made = parse(text, cut=cut)
        if made.start != self.pos:
            assert not made.merged
        self.parts.append(made.merged)
        self.pos += len(made.merged)
        self.last = made
        return made

    def finish(self) -> Transcript:
        while True:
            made = self.take("".join(line.get("stdout", "") for line in self.box.open("follow", self.id, str(self.pos))), cut=False)
            if made.last.name != "more":
                return made

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)
