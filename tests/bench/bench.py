"""The frame of the measurements: what a figure is, the scene it is measured in, and the baselines it is held against.

A figure is a function from a `Scene` to its `Row`s. Every target is a ratio or a count, and whatever is compared is measured in
turns within one run, so that a slow or busy machine slows both sides. Baselines are as fast as this process can make them: a
socket, a request made beforehand, no HTTP library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import pathlib
import socket
import statistics
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / "e2e"), str(REPOSITORY / "client-py")]

from deepinfra_sandboxd import Client  # noqa: E402
from support.daemon import Daemon  # noqa: E402
from support.emulator import Emulator  # noqa: E402


@dataclasses.dataclass
class Row:
    """One line of the table. `ok` None: told for information, there is no target."""

    what: str
    target: str
    measured: str
    ok: bool | None


def at_most(what: str, limit: float, value: float, unit: str = "", *, detail: str = "") -> Row:
    """A row whose value must not be above the limit."""
    return Row(what, f"<= {limit:g}{unit}", f"{value:.3g}{unit}" + (f" ({detail})" if detail else ""), value <= limit)


def at_least(what: str, limit: float, value: float, unit: str = "", *, detail: str = "") -> Row:
    return Row(what, f">= {limit:g}{unit}", f"{value:.3g}{unit}" + (f" ({detail})" if detail else ""), value >= limit)


FIGURES: dict[str, Callable[["Scene"], list[Row]]] = {}


def figure(function: Callable[["Scene"], list[Row]]) -> Callable[["Scene"], list[Row]]:
    """Registers a figure under the name of its function."""
    FIGURES[function.__name__] = function
    return function


@dataclasses.dataclass
class Scene:
    """Where a figure is measured: a directory of its own, and how thorough to be."""

    directory: pathlib.Path
    quick: bool = False  # an order of magnitude fewer turns: shows that the measurement works, not what is true

    def turns(self, thorough: int) -> int:
        return max(3, thorough // 10) if self.quick else thorough

    @contextlib.contextmanager
    def world(self, *, daemon: dict[str, Any] | None = None, tls: bool = False, **settings: Any) -> Iterator[World]:
        """A fresh cloud and a fresh daemon on it. `settings` are the emulator's, `daemon` the daemon's options."""
        with Emulator(self.directory, tls=tls, boot_ms=0, start_ms=0, stop_ms=0, **settings) as cloud:
            with Daemon(self.directory, cloud.url, ca_file=cloud.ca_file, **(daemon or {})) as process, Client(str(process.socket)) as client:
                yield World(cloud, process, client)


@dataclasses.dataclass
class World:
    cloud: Emulator
    daemon: Daemon
    client: Client

    def sandbox_id(self) -> str:
        """The id of the one sandbox that lives."""
        (found,) = [one["sandbox_id"] for one in self.cloud.sandboxes() if one["state"] != "deleted"]
        return str(found)


def milliseconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1000


def in_turns(turns: int, *actions: Callable[[], object]) -> list[list[float]]:
    """Milliseconds of each call of each action, one after another, after a few calls to warm up."""
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(turns + 3):
        for action, taken in zip(actions, times, strict=True):
            one = milliseconds(action)
            if turn >= 3:
                taken.append(one)
    return times


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class DirectExec:
    """The platform's own exec on one kept connection, as fast as a client can be: one request made beforehand, one `sendall`, and
    reading up to the end of the body."""

    def __init__(self, cloud: Emulator, sandbox_id: str, *argv: str) -> None:
        address = urllib.parse.urlsplit(cloud.url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {cloud.api_key}\r\n"
        body = json.dumps({"command": list(argv), "timeout_seconds": 60})
        path = Emulator.path(sandbox_id)
        self._exec = f"POST {path}/exec {head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        self._state = f"GET {path} {head}\r\n".encode()

    def close(self) -> None:
        self._socket.close()

    def run(self) -> None:
        self._socket.sendall(self._exec)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += self._receive()
        if b'"returncode":0' not in received.replace(b" ", b""):
            raise RuntimeError(f"the direct exec failed: {received!r}")

    def state(self) -> None:
        """What the state of the sandbox is, which a client that owns nothing has to ask first."""
        self._socket.sendall(self._state)
        answer = http.client.HTTPResponse(self._socket, method="GET")
        answer.begin()
        if json.loads(answer.read())["state"] != "running":
            raise RuntimeError("the sandbox does not run")

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise RuntimeError("the connection was closed")
        return data
