"""A client of the daemon for tests: every message it sends or receives is held against protocol/.

It reads only when asked to, so that a test decides how slow a reader it is, and it has no thread.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import pathlib
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from support.schema import Conversation, Validator, output_bytes, raw_size

READ_LIMIT_S = 30.0
DEFAULT_KEY = {"profile": "default", "task": "default"}

_names = itertools.count(1)
shared_validator = functools.cache(Validator)  # compiling the schemas takes longer than most tests


class RpcFailure(Exception):
    """An error answer. `name` is what programs act on."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['data']['name']}: {error['message']}")
        self.error = error
        self.name: str = error["data"]["name"]
        self.message: str = error["message"]
        self.hint: str = error["data"]["hint"]
        self.retryable: bool = error["data"]["retryable"]


@dataclass
class Exit:
    """How a command ended, with all its output."""

    params: dict[str, Any]
    stdout: bytes = b""
    stderr: bytes = b""
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)  # monotonic time, bytes of either stream

    def __getattr__(self, name: str) -> Any:
        """Fields of exec.exit; one that is absent is None."""
        return self.params.get(name)


class Peer:
    """One connection. See the module's text."""

    def __init__(self, path: pathlib.Path, *, validate: bool = True, limit_s: float = READ_LIMIT_S) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(limit_s)
        self.socket.connect(str(path))
        self._limit_s = limit_s
        self._buffer = b""
        self._ids = itertools.count(1)
        self._conversation = Conversation(shared_validator()) if validate else None
        self._unclaimed: list[dict[str, Any]] = []  # received while something else was awaited

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- single messages

    def send(self, method: str, params: dict[str, Any] | None = None, *, notification: bool = False) -> int | None:
        """Sends without waiting; returns the request's id."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if not notification:
            message["id"] = next(self._ids)
        if self._conversation is not None:
            self._conversation.sent(message)
        self.send_raw(json.dumps(message).encode() + b"\n")
        return message.get("id")

    def send_wrong(self, message: dict[str, Any]) -> None:
        """Sends what the schemas may refuse."""
        if self._conversation is not None and isinstance(message.get("id"), (int, str)):
            self._conversation.sent_wrong(message["id"])
        self.send_raw(json.dumps(message).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_line(self) -> bytes:
        """The next line with its newline; empty at the end of the connection. socket.timeout after the limit."""
        while b"\n" not in self._buffer:
            data = self.socket.recv(1 << 16)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def read_bytes(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the daemon closed the connection in the middle of output")
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def read(self) -> dict[str, Any]:
        """The next message, validated. ConnectionError at the end of the connection."""
        line = self.read_line()
        if not line:
            raise ConnectionError("the daemon closed the connection")
        message: dict[str, Any] = json.loads(line) if self._conversation is None else self._conversation.received(line)
        if size := raw_size(message):
            message["params"]["raw_bytes"] = self.read_bytes(size)
        return message

    def answer(self, request_id: int | None) -> dict[str, Any]:
        """The whole answer to a request, error or not; notifications that come before it are kept for later."""
        for message in self._unclaimed:
            if message.get("id") == request_id and "method" not in message:
                self._unclaimed.remove(message)
                return message
        while True:
            message = self.read()
            if "method" not in message and message.get("id") == request_id:
                return message
            self._unclaimed.append(message)

    def result(self, request_id: int | None) -> dict[str, Any]:
        answer = self.answer(request_id)
        if "error" in answer:
            raise RpcFailure(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def notification(self, method: str, **matching: Any) -> dict[str, Any]:
        """The params of the next notification of that method whose fields are as given."""

        def fits(message: dict[str, Any]) -> bool:
            return message.get("method") == method and all(message["params"].get(name) == value for name, value in matching.items())

        for message in self._unclaimed:
            if fits(message):
                self._unclaimed.remove(message)
                params: dict[str, Any] = message["params"]
                return params
        while True:
            message = self.read()
            if fits(message):
                params = message["params"]
                return params
            self._unclaimed.append(message)

    # -- conversations

    def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result; RpcFailure for an error."""
        return self.result(self.send(method, params))

    def hello(self, **more: Any) -> dict[str, Any]:
        return self.call("hello", {"client": "tests/1", "protocol": 1, **more})

    def status(self) -> dict[str, Any]:
        return self.call("daemon.status")

    def start(self, *argv: str, key: dict[str, str] | None = None, exec_id: str | None = None, **params: Any) -> str:
        """exec.start; returns the id once the command is accepted."""
        name = exec_id or f"test-{next(_names)}-{time.monotonic_ns()}"
        if argv:
            params["argv"] = list(argv)
        self.call("exec.start", {"exec_id": name, "key": key or DEFAULT_KEY, **params})
        return name

    def attach(self, exec_id: str, offset: int = 0, **params: Any) -> dict[str, Any]:
        """exec.attach; its output and end then come as of a command started here."""
        return self.call("exec.attach", {"exec_id": exec_id, "offset": offset, **params})

    def output(self, exec_id: str, size: int) -> bytes:
        """The next `size` bytes at least, of both streams as they come, without acknowledging them."""
        got = b""
        while len(got) < size:
            got += output_bytes(self.notification("exec.output", exec_id=exec_id))
        return got

    def finish(self, exec_id: str, *, acknowledge: bool = True) -> Exit:
        """Reads until the command's exec.exit."""
        exit_ = Exit({})
        received = {"stdout": bytearray(), "stderr": bytearray()}
        while True:
            message = self._next_of(exec_id)
            params = message["params"]
            if message["method"] == "exec.exit":
                exit_.params = params
                exit_.stdout, exit_.stderr = bytes(received["stdout"]), bytes(received["stderr"])
                if acknowledge:
                    self.send("exec.ack", {"exec_id": exec_id, "offset": params["output_bytes"]}, notification=True)
                return exit_
            data = output_bytes(params)
            exit_.arrivals.append((time.monotonic(), data))
            received[params["stream"]] += data
            if acknowledge:
                self.send("exec.ack", {"exec_id": exec_id, "offset": params["pos"] + len(data)}, notification=True)

    def run(self, *argv: str, **how: Any) -> Exit:
        """A command to its end."""
        return self.finish(self.start(*argv, **how))

    def sh(self, script: str, **how: Any) -> Exit:
        return self.run("/bin/sh", "-c", script, **how)

    def _next_of(self, exec_id: str) -> dict[str, Any]:
        def fits(message: dict[str, Any]) -> bool:
            return message.get("method") in ("exec.output", "exec.exit") and message["params"]["exec_id"] == exec_id

        for message in self._unclaimed:
            if fits(message):
                self._unclaimed.remove(message)
                return message
        while True:
            message = self.read()
            if fits(message):
                return message
            self._unclaimed.append(message)


def b64(data: bytes) -> dict[str, str]:
    """A bytes_value for any bytes."""
    return {"b64": base64.b64encode(data).decode()}
