"""What one call costs: a ping, a terminal call, and finding a sandbox again."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator

from bench import REPOSITORY, DirectExec, Row, Scene, World, at_least, at_most, figure, in_turns, median, percentile

ECHO = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
peer, _ = server.accept()
while data := peer.recv(65536):
    peer.send(data)
"""

NEW_AGENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from deepinfra_sandboxd import Client
begin = time.perf_counter()
with Client(sys.argv[2]) as client:
    client.call("sandbox.ensure", {"key": {"profile": "default", "task": "default"}, "persistent": True})
    print((time.perf_counter() - begin) * 1000)
"""


@contextlib.contextmanager
def echo_server(scene: Scene) -> Iterator[str]:
    """The barest thing that answers on a Unix socket: a process that sends back what it gets."""
    path = str(scene.directory / "echo.sock")
    with subprocess.Popen([sys.executable, "-c", ECHO, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield path
        finally:
            process.kill()


@figure
def ping(scene: Scene) -> list[Row]:
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "daemon.ping", "params": {}}).encode() + b"\n"
    with scene.world() as world, echo_server(scene) as path, socket.socket(socket.AF_UNIX) as bare, socket.socket(socket.AF_UNIX) as ours:
        bare.connect(path)
        ours.connect(str(world.daemon.socket))

        def ask(peer: socket.socket, line: bytes = message) -> None:
            peer.sendall(line)
            while not peer.recv(65536).endswith(b"\n"):
                pass

        ask(ours, b'{"jsonrpc":"2.0","id":0,"method":"hello","params":{"client":"bench/1","protocol":1}}\n')
        echo, answered = in_turns(scene.turns(5000), lambda: ask(bare), lambda: ask(ours))
    rows = []
    for name, percent, limit in (("p50", 50, 2), ("p99", 99, 3)):
        a, b = percentile(answered, percent), percentile(echo, percent)
        rows.append(at_most(f"`daemon.ping` against a bare Unix-socket echo, {name}", limit, a / b, "x", detail=f"{a * 1000:.0f} us, echo {b * 1000:.0f} us"))
    return rows


def warm(world: World, *argv: str) -> DirectExec:
    """A sandbox that runs, with the shim in it; and the direct way to it."""
    world.client.run(["true"])
    return DirectExec(world.cloud, world.sandbox_id(), *argv)


@figure
def requests(scene: Scene) -> list[Row]:
    turns = scene.turns(100)
    with scene.world() as world:
        world.client.run(["true"])
        world.cloud.reset_stats()
        for _ in range(turns):
            world.client.run(["true"])
        made = world.cloud.count() / turns
    return [Row("HTTP requests of a warm terminal call", "exactly 1", f"{made:g}", made == 1)]


@figure
def call(scene: Scene) -> list[Row]:
    """A terminal call against the same argv sent directly; and against asking for the state first, as without an owner."""
    rows = []
    with scene.world() as world:
        direct = warm(world, "true")

        def seed() -> None:
            direct.state()
            direct.run()

        for latency in (0, 30):
            world.cloud.config(latency_ms=latency)
            plain, ours, asking_first = in_turns(scene.turns(200 if latency == 0 else 100), direct.run, lambda: world.client.run(["true"]), seed)
            a, b = median(ours), median(plain)
            detail = f"{a:.2f} ms, direct {b:.2f} ms"
            if latency == 0:
                added = statistics.median(x - y for x, y in zip(ours, plain, strict=True))
                rows.append(at_most("a terminal call adds to a direct keep-alive `POST exec`, no latency", 3, added, " ms", detail=detail))
            else:
                rows.append(at_most("a terminal call against a direct one, 30 ms of latency", 1.10, a / b, "x", detail=detail))
                c = median(asking_first)
                rows.append(at_least("faster than the seed's state poll and exec, 30 ms", 1.8, c / a, "x", detail=f"{a:.1f} ms, seed {c:.1f} ms"))
        direct.close()
    return rows


@figure
def ensure(scene: Scene) -> list[Row]:
    taken: list[float] = []
    with scene.world() as world:
        world.client.run(["true"])
        world.cloud.reset_stats()
        for _ in range(scene.turns(30)):
            done = subprocess.run([sys.executable, "-c", NEW_AGENT, str(REPOSITORY / "client-py"), str(world.daemon.socket)], check=True, capture_output=True)
            taken.append(float(done.stdout))
        made = world.cloud.count()
    return [
        Row("HTTP requests of `sandbox.ensure` by a new process", "0", str(made), made == 0),
        at_most("`sandbox.ensure` of a running sandbox by a new process, connecting included", 10, median(taken), " ms"),
    ]
