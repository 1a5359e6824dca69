"""What the command line and the Python client really say to the daemon, and it to them, is held against the schemas."""

from __future__ import annotations

import json
import pathlib
import socket
import sys
import threading

from support.daemon import REPOSITORY, Daemon
from support.schema import Conversation, Validator, raw_size

sys.path.insert(0, str(REPOSITORY / "client-py"))
from deepinfra_sandboxd import Client  # noqa: E402


class Relay:
    """Stands between clients and the daemon; every line that passes is judged first."""

    def __init__(self, path: pathlib.Path, daemon: pathlib.Path) -> None:
        self.path, self._daemon = path, daemon
        self.failures: list[str] = []
        self.lines = self.raw = 0
        self._validator = Validator()  # here: compiling it can take longer than a client waits for its hello
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._daemon))
            conversation, lock = Conversation(self._validator), threading.Lock()
            for pair in ((client, server, lambda line: conversation.sent(json.loads(line))), (server, client, conversation.received)):
                threading.Thread(target=self._pass_on, args=(*pair, lock), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, judge, lock: threading.Lock) -> None:
        try:
            stream = source.makefile("rb")
            for line in stream:
                with lock:
                    size = 0
                    try:
                        size = raw_size(judge(line) or {})
                    except AssertionError as error:
                        self.failures.append(str(error))
                    self.lines += 1
                    self.raw += size
                    target.sendall(line + stream.read(size))
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # one side has gone, and the other follows


def test_every_line_keeps_to_the_protocol(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    relay = Relay(tmp_path / "relay.sock", daemon.socket)
    try:
        through = {"DEEPINFRA_SANDBOXD_SOCKET": str(relay.path)}
        for arguments, code in ((("exec", "--env", "A=b c", "--", "sh", "-c", "echo out; echo err >&2; exit 3"), 3),
                                (("exec", "--timeout", "0.3", "--", "sleep", "60"), 124), (("status",), 0), (("list",), 0),
                                (("plans",), 0), (("stop", "--task", "default"), 0), (("start", "--task", "default"), 0), (("cancel", "nonesuch"), 1), (("wait",), 0),
                                (("terminate", "--force", "--task", "default"), 0)):
            ended = daemon.cli(*arguments, environment=through)
            assert ended.returncode == code, (arguments, ended)
        with Client(str(relay.path)) as client:
            assert client.run(["cat"], input=b"\x00\xff").stdout == b"\x00\xff"
            assert len(client.run(script="yes | head -c 3000000").stdout) == 3000000
            execution = client.start(["sleep", "60"])
            assert execution.cancel() and execution.wait().returncode == 130
    finally:
        relay.close()
    assert relay.failures == []
    assert relay.lines > 50 and relay.raw > 3000000
