"""A scripted peer of the client, for tests of the client's own mechanics only.

It speaks the protocol as the test tells it to, including wrongly; what the client sends has to be
right, and is held against the schemas. ``ShellDaemon`` also runs scripts,
on this machine, with ``/workspace`` replaced by a directory of the test: enough of a sandbox to
exercise the environment's session handling where the real daemon would add nothing.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import threading
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from support.schema import Validator  # noqa: E402

Message = dict[str, Any]
NO_ANSWER = object()
DEADLINE = 10.0  # seconds after which a test that waits for an event fails


@cache
def validator() -> Validator:
    return Validator()


class Refusal(Exception):
    """Makes a handler answer with an error."""

    def __init__(self, name: str, text: str = "refused", code: int = 1000, hint: str = "") -> None:
        super().__init__(text)
        self.error = {
            "code": code,
            "message": text,
            "data": {"name": name, "retryable": False, "hint": hint},
        }


class Peer:
    """One accepted connection; ``output`` keeps to the window the client asked for."""

    def __init__(self, daemon: FakeDaemon, sock: socket.socket) -> None:
        self.daemon, self.sock = daemon, sock
        self._write = threading.Lock()
        self.changed = threading.Condition()
        self.offsets: dict[tuple[str, str], int] = {}
        self.sent: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.windows: dict[str, int] = {}
        self.closed = False

    def raw(self, data: bytes) -> None:
        with self._write:
            self.sock.sendall(data)

    def send(self, message: Message) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def notify(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def output(self, exec_id: str, data: bytes, stream: str = "stdout", paced: bool = True) -> None:
        """Send *data*, waiting for acknowledgements as the daemon has to."""
        while data:
            piece, data = data[:65536], data[65536:]
            with self.changed:
                sent = self.sent.get(exec_id, 0)
                room = self.windows.get(exec_id, 1 << 20) - len(piece)
                if paced and not self.changed.wait_for(
                    lambda: self.closed or sent - self.acked.get(exec_id, 0) <= room, DEADLINE
                ):
                    raise AssertionError(f"no acknowledgement for {exec_id}")
                if self.closed:
                    return
                self.sent[exec_id] = sent + len(piece)
                offset = self.offsets.get((exec_id, stream), 0)
                self.offsets[(exec_id, stream)] = offset + len(piece)
            self.notify(
                "exec.output",
                exec_id=exec_id,
                stream=stream,
                offset=offset,
                data_b64=base64.b64encode(piece).decode(),
            )

    def exit(self, exec_id: str, code: int | None = 0, reason: str = "exited", **more: Any) -> None:
        params = {"started": "yes", "recreated": False, "generation": self.daemon.generation}
        params |= {"output_bytes": self.sent.get(exec_id, 0), "dropped_bytes": 0}
        self.notify(
            "exec.exit", exec_id=exec_id, returncode=code, reason=reason, **{**params, **more}
        )

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class FakeDaemon:
    """Listens on *path* until ``stop``. ``on[method]`` is a handler ``(peer, params) -> result``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 1
        self.state = "running"
        self.account: Message = {"configured": True, "fingerprint": None}
        self.messages: list[Message] = []
        self.peers: list[Peer] = []
        self.changed = threading.Condition()
        self.failures: list[str] = []
        self.on: dict[str, Callable[[Peer, Message], Any]] = {
            "hello": lambda peer, params: self.hello(),
            "daemon.ping": lambda peer, params: {},
            "account.set": self._account_set,
            "sandbox.ensure": lambda peer, params: {
                "sandbox": self._sandbox(params),
                "created": False,
                "resumed": False,
                "generation": self.generation,
            },
            "sandbox.get": lambda peer, params: {"sandbox": self._sandbox(params)},
            "sandbox.release": lambda peer, params: {"action": "kept", "holders": 0},
            "exec.start": lambda peer, params: {"exec_id": params["exec_id"], "accepted": True},
            "exec.cancel": lambda peer, params: {"confirmed": True},
            "exec.ack": self._ack,
        }
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def hello(self) -> Message:
        return {
            "protocol": 1,
            "version": "9.9.9",
            "instance": "fake",
            "capabilities": [],
            "account": dict(self.account),
        }

    def wait_for(self, method: str, count: int = 1) -> Message:
        """The params of the *count*-th message of that method, once it has come."""

        def found() -> list[Message]:
            return [m for m in self.messages if m["method"] == method]

        with self.changed:
            if not self.changed.wait_for(lambda: len(found()) >= count, DEADLINE):
                raise AssertionError(f"{method} did not come; got {self.methods()}")
            return dict(found()[count - 1].get("params", {}))

    def methods(self) -> list[str]:
        with self.changed:
            return [m["method"] for m in self.messages]

    def peer(self) -> Peer:
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.peers), DEADLINE), "nobody connected"
            return self.peers[-1]

    def stop(self) -> None:
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        self._thread.join(DEADLINE)
        for peer in self.peers:
            peer.close()
        self.path.unlink(missing_ok=True)

    def _sandbox(self, params: Message) -> Message:
        return {"key": params.get("key"), "id": "sb_1", "state": self.state}

    def _account_set(self, peer: Peer, params: Message) -> Message:
        self.account = {"configured": True, "fingerprint": "f" * 16}
        return self.account

    def _ack(self, peer: Peer, params: Message) -> object:
        with peer.changed:
            peer.acked[params["exec_id"]] = params["offset"]
            peer.changed.notify_all()
        return NO_ANSWER

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            peer = Peer(self, sock)
            with self.changed:
                self.peers.append(peer)
                self.changed.notify_all()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        pending: dict[Any, Any] = {}  # ids in use: the client never repeats one
        try:
            for line in peer.sock.makefile("rb"):
                self._handle(peer, json.loads(line), pending)
        except OSError:
            pass
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            peer.close()
            peer.sock.close()

    def _handle(self, peer: Peer, message: Message, pending: dict[Any, Any]) -> None:
        validator().message("client-to-daemon", message, pending)
        method, params = message["method"], message.get("params", {})
        if method == "exec.start":
            peer.windows[params["exec_id"]] = params.get("window", 1 << 20)
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()
        try:
            result = self.on[method](peer, params)
        except Refusal as refusal:
            peer.send({"id": message["id"], "error": refusal.error})
            return
        if result is not NO_ANSWER and "id" in message:
            peer.send({"id": message["id"], "result": result})
        if method == "exec.start" and result is not NO_ANSWER:
            self.after_start(peer, params)

    def after_start(self, peer: Peer, params: Message) -> None:
        """What happens once a command was accepted; by default the test drives it."""


class ShellDaemon(FakeDaemon):
    """Runs scripts for real; ``directory`` plays /workspace."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ignore_cancel = False
        super().__init__(path)
        self.on["exec.cancel"] = self._cancel

    def after_start(self, peer: Peer, params: Message) -> None:
        threading.Thread(target=self._run, args=(peer, params), daemon=True).start()

    def _run(self, peer: Peer, params: Message) -> None:
        exec_id = params["exec_id"]
        script = decode(params["script"]).replace(b"/workspace", os.fsencode(self.directory))
        stdin = params.get("stdin")
        child = subprocess.Popen(
            [b"bash", b"-lc" if params.get("login") else b"-c", script],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "HOME": str(self.directory)},
            start_new_session=True,
        )
        self.running[exec_id] = child
        if stdin is not None:
            assert child.stdin is not None
            child.stdin.write(decode(stdin))
            child.stdin.close()
        assert child.stdout is not None
        while data := os.read(child.stdout.fileno(), 65536):
            peer.output(exec_id, data)
        code = child.wait()
        cancelled = code == -signal.SIGKILL
        try:
            if cancelled:
                peer.exit(exec_id, 130, "cancelled")
            else:
                peer.exit(exec_id, code)
        except OSError:
            pass  # the client has gone

    def _cancel(self, peer: Peer, params: Message) -> Message:
        child = self.running.get(params["exec_id"])
        if child is not None and not self.ignore_cancel:
            os.killpg(child.pid, signal.SIGKILL)
        return {"confirmed": not self.ignore_cancel}

    def stop(self) -> None:
        for child in self.running.values():
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        super().stop()


def decode(value: Any) -> bytes:
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else str(value).encode()


def eventually(condition: Callable[[], bool], what: str) -> None:
    """For states that nothing announces; fails after the deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"did not happen: {what}"
        time.sleep(0.005)
