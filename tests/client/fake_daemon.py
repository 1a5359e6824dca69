"""A scripted peer of the client, for tests of the client's own mechanics only.

It speaks the protocol as the test tells it to, including wrongly; what the client sends has to be
right, and is held against the schemas. ``ShellDaemon`` also runs scripts,
on this machine, with ``/workspace`` replaced by a directory of the test: enough of a sandbox to
exercise the environment's session handling where the real daemon would add nothing. Its commands
outlive connections and, as with the real one's journal, ``crash`` and ``restart``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import sys
import tarfile
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
        self.base: dict[str, int] = {}  # the position that a command was attached at
        self.raw_output = False
        self.closed = False

    def greeted(self, params: Message) -> Message:
        self.raw_output = "raw_output" in self.daemon.capabilities and params.get("raw_output", False)
        return self.daemon.hello()

    def raw(self, data: bytes) -> None:
        with self._write:
            self.sock.sendall(data)

    def send(self, message: Message) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def notify(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def output(self, exec_id: str, data: bytes, stream: str = "stdout", paced: bool = True) -> None:
        """Send *data*, waiting for acknowledgements as the daemon has to."""
        limit = min(65536, self.windows.get(exec_id, 1 << 20))
        while data:
            piece, data = data[:limit], data[limit:]
            with self.changed:
                sent = self.sent.get(exec_id, 0)
                room = self.windows.get(exec_id, 1 << 20) - len(piece)
                if paced and not self.changed.wait_for(
                    lambda: self.closed or sent + self.base.get(exec_id, 0) - self.acked.get(exec_id, 0) <= room,
                    DEADLINE,
                ):
                    raise AssertionError(f"no acknowledgement for {exec_id}")
                if self.closed:
                    return
                self.sent[exec_id] = sent + len(piece)
                offset = self.offsets.get((exec_id, stream), 0)
                self.offsets[(exec_id, stream)] = offset + len(piece)
            place = {"exec_id": exec_id, "stream": stream, "offset": offset, "pos": self.base.get(exec_id, 0) + sent}
            if self.raw_output:
                line = {"jsonrpc": "2.0", "method": "exec.output", "params": {**place, "raw": len(piece)}}
                self.raw(json.dumps(line).encode() + b"\n" + piece)
            else:
                self.notify("exec.output", **place, data_b64=base64.b64encode(piece).decode())

    def flood(self, exec_id: str, data: bytes) -> threading.Thread:
        """``output`` on a thread of its own: a client reads only while somebody waits."""

        def send() -> None:
            with contextlib.suppress(OSError):  # the client has gone
                self.output(exec_id, data)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        return thread

    def exit(self, exec_id: str, code: int | None = 0, reason: str = "exited", **more: Any) -> None:
        params = {"started": "yes", "recreated": False, "generation": self.daemon.generation}
        params |= {"output_bytes": self.base.get(exec_id, 0) + self.sent.get(exec_id, 0), "dropped_bytes": 0}
        self.notify("exec.exit", exec_id=exec_id, returncode=code, reason=reason, **{**params, **more})

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
        self.capabilities = ["exec.attach", "exec.stdin", "fs", "generation", "idle_stop", "raw_output"]
        self.instance = "fake"
        self.state = "running"
        self.account: Message = {"configured": True, "fingerprint": None}
        self.key_refused = False  # by the cloud, and then another one is taken
        self.messages: list[Message] = []
        self.peers: list[Peer] = []
        self.changed = threading.Condition()
        self.failures: list[str] = []
        self.on: dict[str, Callable[[Peer, Message], Any]] = {
            "hello": lambda peer, params: peer.greeted(params),
            "daemon.ping": lambda peer, params: {},
            "daemon.health": lambda peer, params: {"health": []},
            "plan.list": lambda peer, params: {"plans": [], "default": None},
            "account.set": self._account_set,
            "sandbox.ensure": lambda peer, params: {
                "sandbox": self._sandbox(params),
                "created": False,
                "resumed": False,
                "generation": self.generation,
            },
            "sandbox.get": lambda peer, params: {"sandbox": self._sandbox(params)},
            "sandbox.release": lambda peer, params: {"action": "kept", "holders": 0},
            "exec.start": lambda peer, params: {
                "exec_id": params["exec_id"],
                "accepted": True,
                "attached": False,
            },
            "exec.cancel": lambda peer, params: {"confirmed": True},
            "exec.ack": self._ack,
        }
        self.restart()

    def hello(self) -> Message:
        return {
            "protocol": 1,
            "version": "9.9.9",
            "instance": self.instance,
            "capabilities": list(self.capabilities),
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

    def restart(self) -> None:
        """Listen (again)."""
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen(64)
        self._thread = threading.Thread(target=self._accept, args=(self.listener,), daemon=True)
        self._thread.start()

    def crash(self) -> None:
        """Everything that hangs on the process is gone at once; its socket file stays."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(DEADLINE)
        self.drop()

    def drop(self) -> None:
        """All connections end."""
        for peer in list(self.peers):
            peer.close()

    def stop(self) -> None:
        self.crash()
        self.path.unlink(missing_ok=True)

    def _sandbox(self, params: Message) -> Message:
        return {"key": params.get("key"), "id": "sb_1", "state": self.state, "generation": self.generation}

    def _account_set(self, peer: Peer, params: Message) -> Message:
        fingerprint = hashlib.sha256(b"deepinfra-sandboxd key v1\n" + params["api_key"].encode()).hexdigest()[:16]
        if self.account["configured"] and self.account["fingerprint"] != fingerprint and not self.key_refused:
            raise Refusal("account_mismatch", "this daemon already works with another API key", code=2003)
        self.account, self.key_refused = {"configured": True, "fingerprint": fingerprint}, False
        return self.account

    def _ack(self, peer: Peer, params: Message) -> object:
        with peer.changed:
            peer.acked[params["exec_id"]] = params["offset"]
            peer.changed.notify_all()
        return NO_ANSWER

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
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
                if not line.endswith(b"\n"):
                    break  # torn by the end of the connection: no message
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
        if method in ("exec.start", "exec.attach"):
            peer.windows[params["exec_id"]] = params.get("window", 1 << 20)
            peer.base[params["exec_id"]] = peer.acked[params["exec_id"]] = params.get("offset", 0)
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
        if method in ("exec.start", "exec.attach") and result is not NO_ANSWER:
            self.after_start(peer, params)

    def after_start(self, peer: Peer, params: Message) -> None:
        """What happens once a command was accepted; by default the test drives it."""


class Command:
    """A command of ``ShellDaemon``: its output from the first byte, and its end."""

    def __init__(self, params: Message) -> None:
        self.params = params
        self.changed = threading.Condition()
        self.output = bytearray()
        self.end: tuple[int | None, str] | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.taken = {"stdin": bytearray(), "script": bytearray()}
        self.complete = {"stdin": threading.Event(), "script": threading.Event()}
        self.forgotten = False
        self.more: Message = {}  # further members of its exec.exit


class ShellDaemon(FakeDaemon):
    """Runs scripts for real; ``directory`` plays /workspace."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.directory = directory
        self.commands: dict[str, Command] = {}
        self.ignore_cancel = False
        self.started: list[str] = []
        self.lose_answers = 0  # so many exec.start are done and not answered: the connection ends instead
        # The platform has stopped the sandbox, and the daemon does not know; its ensure starts it once it does.
        self.stopped_unseen = self.stopped_seen = False
        self.unasked: list[str] = []  # commands that started a stopped sandbox by themselves
        super().__init__(path)
        self.on |= {
            "sandbox.ensure": self._ensure,
            "exec.start": self._start,
            "exec.attach": self._attach,
            "exec.stdin": self._stdin,
            "exec.cancel": self._cancel,
            "fs.push": self._push,
            "fs.pull": self._pull,
            "fs.delete": self._delete,
        }

    def after_start(self, peer: Peer, params: Message) -> None:
        threading.Thread(target=self._tell, args=(peer, self.commands[params["exec_id"]]), daemon=True).start()

    def _start(self, peer: Peer, params: Message) -> object:
        exec_id = params["exec_id"]
        meant = {name: value for name, value in params.items() if name not in ("resume", "offset")}
        known = self.commands.get(exec_id)
        if known is not None and known.params != meant:
            raise Refusal("exec_id_in_use", f"{exec_id} is in use")
        if known is None:
            if params.get("resume"):
                raise Refusal("exec_not_found", f"there is no command {exec_id}")
            self.commands[exec_id] = command = Command(meant)
            if not self._refused(command):
                self.started.append(exec_id)
                threading.Thread(target=self._run, args=(command,), daemon=True).start()
        if self.lose_answers:
            self.lose_answers -= 1
            peer.close()
            return NO_ANSWER
        return {"exec_id": exec_id, "accepted": True, "attached": known is not None}

    def _refused(self, command: Command) -> bool:
        """What the real daemon does about `generation`; the end of the command says so."""
        stopped, meant = self.stopped_unseen or self.stopped_seen, command.params.get("generation")
        if meant is None:
            if stopped:
                self.unasked.append(command.params["exec_id"])
            return False
        if not stopped and meant == self.generation:
            return False
        self.stopped_seen, self.stopped_unseen = stopped, False
        error = {"code": 3006, "name": "generation_changed", "retryable": False, "hint": "call sandbox.ensure"}
        command.more = {"started": "no", "message": "that generation does not run any more", "error": error}
        command.end = (None, "failed")
        return True

    def _ensure(self, peer: Peer, params: Message) -> Message:
        if self.stopped_seen:
            self.stopped_seen = False
            self.lose_what_a_stop_loses()
        return {"sandbox": self._sandbox(params), "created": False, "resumed": False, "generation": self.generation}

    def lose_what_a_stop_loses(self) -> None:
        subprocess.run("rm -f /tmp/hermes-snap-*", shell=True, check=True)
        self.generation += 1

    def _attach(self, peer: Peer, params: Message) -> Message:
        if params["exec_id"] not in self.commands:
            raise Refusal("exec_not_found", "there is no such command")
        return {"exec_id": params["exec_id"], "phase": "running", "attached": True}

    def _stdin(self, peer: Peer, params: Message) -> Message:
        command = self.commands[params["exec_id"]]
        stream = params.get("stream", "stdin")
        taken, data = command.taken[stream], base64.b64decode(params.get("data_b64", ""))
        if params["offset"] > len(taken):
            raise Refusal("invalid_params", "bytes are missing before these")
        taken += data[len(taken) - params["offset"] :]
        if params.get("eof"):
            command.complete[stream].set()
        return {"accepted": len(taken), "state": "eof" if command.complete[stream].is_set() else "open"}

    def _run(self, command: Command) -> None:
        params = command.params
        if "script_size" in params:
            command.complete["script"].wait(DEADLINE)
            script = bytes(command.taken["script"])
            assert (
                len(script) == params["script_size"] and hashlib.sha256(script).hexdigest() == params["script_sha256"]
            )
        else:
            script = decode(params["script"]) if "script" in params else shlex.join(map(str, params["argv"])).encode()
        stdin = params.get("stdin")
        has_stdin = stdin is not None or params.get("stdin_open", False)
        child = subprocess.Popen(
            [
                b"bash",
                b"-lc" if params.get("login") else b"-c",
                script.replace(b"/workspace", os.fsencode(self.directory)),
            ]
            if len(script) < 100_000
            else [b"bash", self._script_file(script)],
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "HOME": str(self.directory)},
            start_new_session=True,
        )
        command.child = child
        if has_stdin:
            threading.Thread(target=self._feed, args=(command, child, stdin), daemon=True).start()
        assert child.stdout is not None
        while data := os.read(child.stdout.fileno(), 65536):
            with command.changed:
                command.output += data
                command.changed.notify_all()
        code = child.wait()
        with command.changed:
            command.end = (130, "cancelled") if code == -signal.SIGKILL else (code, "exited")
            command.changed.notify_all()

    def _script_file(self, script: bytes) -> bytes:
        path = self.directory / "script"
        path.write_bytes(script)
        return os.fsencode(path)

    def _feed(self, command: Command, child: subprocess.Popen[bytes], stdin: Any) -> None:
        assert child.stdin is not None
        if stdin is None and not command.complete["stdin"].wait(6 * DEADLINE):
            self.failures.append("a command's input did not come to its end")
        with contextlib.suppress(OSError):
            child.stdin.write(decode(stdin) if stdin is not None else bytes(command.taken["stdin"]))
            child.stdin.close()

    def _tell(self, peer: Peer, command: Command) -> None:
        """Send what there is and what comes, from the position that this connection asked for."""
        exec_id = command.params["exec_id"]
        position = peer.base[exec_id]
        with contextlib.suppress(OSError):  # the client has gone
            while not peer.closed:
                with command.changed:
                    command.changed.wait_for(lambda: command.end is not None or len(command.output) > position, 0.1)
                    data, end = bytes(command.output[position:]), command.end
                if data:
                    peer.output(exec_id, data)
                    position += len(data)
                elif end is not None:
                    return peer.exit(exec_id, end[0], end[1], **command.more)

    def _cancel(self, peer: Peer, params: Message) -> Message:
        command = self.commands.get(params["exec_id"])
        if command is not None and command.child is not None and command.end is None and not self.ignore_cancel:
            kill_group(command.child)
        return {"confirmed": not self.ignore_cancel}

    def _local(self, remote: Any) -> Path:
        return self.directory / decode(remote).decode().removeprefix("/workspace/")

    def _push(self, peer: Peer, params: Message) -> Message:
        for pair in params["files"]:
            target = self._local(pair["remote"])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(decode(pair["host"]).decode()).read_bytes())
        counts = {"unchanged": 0, "bytes": 0, "wire_bytes": 0, "skipped_more": 0}
        return {"sent": len(params["files"]), "skipped": [], "sandbox_id": "sb_1", **counts}

    def _delete(self, peer: Peer, params: Message) -> Message:
        for remote in params["remotes"]:
            self._local(remote).unlink(missing_ok=True)
        return {"deleted": len(params["remotes"]), "missing": 0, "failed": []}

    def _pull(self, peer: Peer, params: Message) -> Message:
        source = self._local(params["remote"])
        if not source.exists():
            raise Refusal("file_not_found", "there is no such file")
        with tarfile.open(decode(params["host"]).decode(), "w") as tar:
            tar.add(source, arcname=params["remote"].lstrip("/"))
        return {"files": 1, "bytes": 0, "wire_bytes": 0, "skipped": [], "skipped_more": 0}

    def _ack(self, peer: Peer, params: Message) -> object:
        command = self.commands[params["exec_id"]]
        command.forgotten = command.end is not None and params["offset"] == len(command.output)
        return super()._ack(peer, params)

    def stop(self) -> None:
        for command in self.commands.values():
            child = command.child
            if child is not None and child.poll() is None:
                kill_group(child)
                child.wait()
        super().stop()


def kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended, and another thread has waited for it
        os.killpg(child.pid, signal.SIGKILL)


def decode(value: Any) -> bytes:
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else str(value).encode()


def eventually(condition: Callable[[], bool], what: str) -> None:
    """For states that nothing announces; fails after the deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"did not happen: {what}"
        time.sleep(0.005)
