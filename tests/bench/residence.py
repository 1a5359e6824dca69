"""What a daemon costs that has nothing to do, and how soon it is there."""

from __future__ import annotations

import json
import pathlib
import socket
import time

from bench import Row, Scene, World, at_most, figure, median

SANDBOXES = 5
WATCHED_S = 20.0


def wake_ups(pid: int) -> int:
    """How often any thread of the process has gone to sleep and was woken."""
    total = 0
    for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        text = status.read_text()
        total += int(next(line for line in text.splitlines() if line.startswith("voluntary_ctxt_switches")).split()[1])
    return total


def five_sandboxes(world: World) -> None:
    for n in range(SANDBOXES):
        assert world.client.run(["true"], key=("bench", f"task-{n}")).returncode == 0


@figure
def idle(scene: Scene) -> list[Row]:
    with scene.world(max_active=SANDBOXES) as world:
        five_sandboxes(world)
        time.sleep(2)  # farewells of the last calls
        watched = WATCHED_S / (10 if scene.quick else 1)
        before, requests = wake_ups(world.daemon.pid), world.cloud.count()
        time.sleep(watched)
        woken, requests = wake_ups(world.daemon.pid) - before, world.cloud.count() - requests
        resident = world.daemon.rss_kib() / 1024
    return [
        at_most(f"an idle daemon with {SANDBOXES} sandboxes: RSS", 12, resident, " MiB"),
        at_most(f"an idle daemon with {SANDBOXES} sandboxes: wake-ups a minute", 60, woken / watched * 60, detail=f"{requests} requests meanwhile"),
    ]


@figure
def start(scene: Scene) -> list[Row]:
    """From fork to the answer of `hello`, with the records of five sandboxes to load."""
    taken = []
    with scene.world(max_active=SANDBOXES) as world:
        five_sandboxes(world)
        for _ in range(scene.turns(30)):
            world.daemon.stop()
            begin = time.perf_counter()
            world.daemon.spawn()
            greet(str(world.daemon.socket))
            taken.append((time.perf_counter() - begin) * 1000)
    return [at_most("start of the daemon to its first answer", 30, median(taken), " ms")]


def greet(path: str) -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as peer:
            try:
                peer.connect(path)
            except OSError:
                time.sleep(0.0005)
                continue
            peer.sendall(b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"client":"bench/1","protocol":1}}\n')
            assert json.loads(peer.recv(65536))["result"]["protocol"] == 1
            return
