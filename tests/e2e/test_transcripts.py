"""Replays the conversations in transcripts/ against a real daemon and compares every line.

A transcript is text: `-->` is sent, `<--` must come next, `#` starts a comment, and `@` says what happens around the
connection:

    @ emulator NAME=VALUE ...   settings of the cloud from here on
    @ cloud stops <sandbox 1>   behind the daemon's back; also `deletes`
    @ connect                   goes on with a new connection
    @ closed                    the daemon closes the connection
    @ no key                    (first line) the daemon has no API key

What differs from run to run stands in angle brackets, on both sides: `<version>`, `<pid>`, `<seconds>`; `<sandbox 1>` is the first
sandbox id that came, wherever it stands. Everything else is compared byte for byte, the order of fields too. After a
change that is meant, UPDATE_TRANSCRIPTS=1 writes what came; read the difference before committing it.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.rpc import READ_LIMIT_S, Peer
from support.schema import SchemaError, is_id

HERE = pathlib.Path(__file__).resolve().parent / "transcripts"
RECORDING_QUIET_S = 1.0
TRANSCRIPTS = sorted(HERE.glob("*.txt"))

# Fields whose value differs from run to run, wherever they stand.
VOLATILE = {
    "version": "<version>", "pid": "<pid>", "instance": "<instance>", "socket": "<socket>", "state_dir": "<state directory>",
    "base_url": "<base URL>", "uptime_s": "<seconds>", "waited_s": "<seconds>", "elapsed_s": "<seconds>", "idle_s": "<seconds>",
    "created_at": "<time>", "http_requests": "<count>", "rpc_requests": "<count>", "connections": "<count>",
}
# Also where they are null or 0: whether the price is known yet is a matter of milliseconds.
MONEY = {name: "<dollars>" for name in ("rate_usd_per_hour", "cost_usd", "today_usd", "total_usd", "saved_today_usd", "saved_usd")}
SANDBOX = re.compile(r"\bsb_[0-9a-z]+\b")


class Names:
    """Between what a run said and what a transcript says."""

    def __init__(self, daemon: Daemon, emulator: Emulator) -> None:
        self._sandboxes: list[str] = []
        with daemon.peer() as peer:
            version = peer.status()["daemon"]["version"]
        self._texts = {emulator.url: "<base URL>", str(daemon.socket): "<socket>", str(daemon.state_dir): "<state directory>",
                       f"({version})": "(<version>)"}

    def general(self, line: bytes) -> str:
        """A received line as a transcript shows it."""
        return json.dumps(self._value(json.loads(line)), ensure_ascii=False, separators=(",", ":"))

    def _value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: MONEY[key] if key in MONEY else VOLATILE[key] if key in VOLATILE and not isinstance(each, (dict, list, type(None))) else self._value(each, key)
                    for key, each in value.items()}
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if not isinstance(value, str):
            return value
        for text, shown in self._texts.items():
            value = value.replace(text, shown)
        if name == "awake_because":
            value = re.sub(r"\d+ s", "<seconds> s", value)
        return SANDBOX.sub(lambda found: self._shown(found.group()), value)

    def _shown(self, sandbox_id: str) -> str:
        if sandbox_id not in self._sandboxes:
            self._sandboxes.append(sandbox_id)
        return f"<sandbox {self._sandboxes.index(sandbox_id) + 1}>"

    def actual(self, text: str) -> str:
        """A line of a transcript as it is to be sent."""
        return re.sub(r"<sandbox (\d+)>", lambda found: self._sandboxes[int(found.group(1)) - 1], text)


def send(peer: Peer, line: str) -> None:
    """Sends it as it stands. What the schemas refuse, or nobody can read, must be answered by an error."""
    assert peer._conversation is not None
    try:
        message = json.loads(line)
        peer._conversation.sent(message)
    except SchemaError:
        if isinstance(message, dict) and is_id(message.get("id")):
            peer._conversation.sent_wrong(message["id"])
    except ValueError:
        pass
    peer.send_raw(line.encode() + b"\n")


class Replay:
    def __init__(self, daemon: Daemon, emulator: Emulator) -> None:
        self.daemon, self.emulator = daemon, emulator
        self.names = Names(daemon, emulator)
        self.peer = daemon.peer(hello=False)
        self._closed = False

    def step(self, line: str) -> str:
        """Does what a line says; returns the line as it should have been."""
        mark, _, text = line.partition(" ")
        if mark == "-->":
            send(self.peer, self.names.actual(text))
        elif mark == "<--":
            received = self.peer.read_line()
            assert received, f"the daemon closed the connection instead of sending {text}"
            assert self.peer._conversation is not None
            self.peer._conversation.received(received)
            return f"<-- {self.names.general(received)}"
        elif mark == "@":
            self._around(text)
        else:
            assert not line or mark.startswith("#"), f"a transcript has no such line: {line}"
        return line

    def record(self, lines: list[str]) -> Iterator[str]:
        """The lines with what really comes: all that does until it is quiet, wherever anything was expected."""
        for number, line in enumerate(lines):
            if line.startswith("<--"):
                continue
            yield self.step(line)
            if lines[number + 1:] and lines[number + 1].startswith("<--"):
                self.peer.socket.settimeout(RECORDING_QUIET_S)
                try:
                    while True:
                        yield self.step("<--")
                except (TimeoutError, AssertionError):  # quiet, or closed
                    self.peer.socket.settimeout(READ_LIMIT_S)

    def nothing_more(self) -> None:
        """Whatever had been on its way would come before the answer to a last ping."""
        if not self._closed:
            last = {"jsonrpc": "2.0", "id": "the last", "method": "daemon.ping"}
            send(self.peer, json.dumps(last))
            assert self.peer.read()["id"] == "the last"

    def _around(self, text: str) -> None:
        words = self.names.actual(text).split()
        if words[0] == "emulator":
            self.emulator.config(**{name: json.loads(value) for name, value in (word.split("=", 1) for word in words[1:])})
        elif words[:2] == ["cloud", "stops"]:
            self.emulator.stop_sandbox(words[2])
        elif words[:2] == ["cloud", "deletes"]:
            self.emulator.delete_sandbox(words[2])
        elif words == ["connect"]:
            self.peer.close()
            self.peer = self.daemon.peer(hello=False)
            self._closed = False
        elif words == ["closed"]:
            assert self.peer.read_line() == b""
            self._closed = True
        else:
            assert words == ["no", "key"], f"a transcript has no such line: @ {text}"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: pathlib.Path, make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    wanted = path.read_text(encoding="utf-8").splitlines()
    with_key = "@ no key" not in wanted
    replay = Replay(make_daemon(api_key="test-key" if with_key else None).start(), emulator)
    try:
        if "UPDATE_TRANSCRIPTS" in os.environ:
            path.write_text("".join(f"{line}\n" for line in replay.record(wanted)), encoding="utf-8")
            return
        for number, line in enumerate(wanted, 1):
            assert replay.step(line) == line, f"line {number} of {path.name}"
        replay.nothing_more()
    finally:
        replay.peer.close()


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8
